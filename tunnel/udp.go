package tunnel

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/udp"
)

const (
	// maxPacket is the largest UDP payload, over IPv6.
	maxPacket = 65527
	// packetLifetime is how long a packet that fits into no datagram may be sent.
	packetLifetime = time.Second
	// flowQueue is how many packets of a flow may wait for the session. More are
	// dropped, as a full socket does.
	flowQueue = 64
	// frontFlows is how many senders a UDP socket may have at a time.
	frontFlows = 4096
	// refusedRest is how long packets of a sender are dropped whose flow the peer
	// has refused.
	refusedRest = time.Second
)

// The messages of a flow's stream begin with one of these. Packets that fit travel
// as datagrams of the session instead, with the number of the stream in front (4
// bytes), once the peer knows it.
const (
	messageControl = 0 // an opening, or the answer to it
	messagePacket  = 1
)

// flow is a flow of UDP packets over a session. Its stream begins and ends it, and
// carries what fits into no datagram.
type flow struct {
	s       *session
	stream  *kcp.Stream
	deliver func(packet []byte) // must not wait
	queue   chan []byte
	known   atomic.Bool  // the peer knows the flow: datagrams will find it
	last    atomic.Int64 // when the last packet passed, in Unix nanoseconds
	idle    *time.Timer
	uncount func() // of the tally
	ended   chan struct{}
	end     func(code refusal) // resets the flow; any number of times
}

// newFlow returns the flow of a stream, which is known to datagrams from now on.
func (s *session) newFlow(stream *kcp.Stream, deliver func([]byte)) *flow {
	f := &flow{s: s, stream: stream, deliver: deliver, queue: make(chan []byte, flowQueue), ended: make(chan struct{})}
	var once sync.Once
	f.end = func(code refusal) {
		once.Do(func() {
			close(f.ended)
			_ = stream.Reset(uint64(code))
		})
	}
	f.touch()
	f.idle = time.AfterFunc(time.Hour, f.checkIdle)
	f.idle.Reset(s.udpTimeout) // not before f.idle is set
	s.mu.Lock()
	if s.flows == nil {
		s.flows = make(map[uint32]*flow)
	}
	s.flows[stream.ID()] = f
	over := s.over
	s.mu.Unlock()
	if over {
		f.end(codeShutdown)
	}
	s.active.Add(1)
	f.uncount = s.tally.flow()
	return f
}

// touch notes that a packet has passed.
func (f *flow) touch() { f.last.Store(time.Now().UnixNano()) }

// checkIdle ends the flow if no packet has passed for long enough.
func (f *flow) checkIdle() {
	left := f.s.udpTimeout - time.Since(time.Unix(0, f.last.Load()))
	select {
	case <-f.ended:
		return
	default:
	}
	if left <= 0 {
		f.end(codeIdle)
		return
	}
	f.idle.Reset(left)
}

// send sends a packet, which it copies, to the other end. It does not wait.
func (f *flow) send(packet []byte) {
	f.touch()
	select {
	case f.queue <- bytes.Clone(packet):
	default:
	}
}

// run carries packets until the flow ends, and returns why if the peer has ended it.
func (f *flow) run() error {
	var sending sync.WaitGroup
	sending.Go(f.sendQueued)
	err := f.receive()
	f.end(codeGone)
	f.idle.Stop()
	f.s.release(f.stream)
	f.s.mu.Lock()
	delete(f.s.flows, f.stream.ID())
	f.s.mu.Unlock()
	sending.Wait()
	f.s.active.Add(-1)
	f.uncount()
	return err
}

// sendQueued sends what is in the queue, until the flow ends.
func (f *flow) sendQueued() {
	var frame []byte
	for {
		select {
		case <-f.ended:
			return
		case packet := <-f.queue:
			if f.known.Load() && 4+len(packet) <= f.s.conn.MaxDatagramSize() {
				frame = binary.BigEndian.AppendUint32(frame[:0], f.stream.ID())
				if f.s.conn.SendDatagram(append(frame, packet...)) == nil {
					f.s.tally.send(len(packet))
					continue // it may have become too large meanwhile
				}
			}
			frame = append(append(frame[:0], messagePacket), packet...)
			if err := f.stream.SendMessage(frame, &kcp.MessageOptions{Lifetime: packetLifetime}); err != nil {
				return
			}
			f.s.tally.send(len(packet))
		}
	}
}

// receive passes on the packets of the stream until that ends.
func (f *flow) receive() error {
	buf := make([]byte, 2048)
	for {
		n, err := readMessage(f.stream, &buf)
		if err != nil {
			return refused(err)
		}
		f.take(buf[:n])
	}
}

// take passes on what a message holds.
func (f *flow) take(message []byte) {
	if len(message) == 0 {
		return
	}
	f.known.Store(true)
	if message[0] == messagePacket {
		f.touch()
		f.s.tally.receive(len(message) - 1)
		f.deliver(message[1:])
	}
}

// readMessage reads a message, with a larger buffer if it needs one.
func readMessage(stream *kcp.Stream, buf *[]byte) (int, error) {
	for {
		n, err := stream.ReadMessage(*buf)
		size := 0
		if errors.Is(err, io.ErrShortBuffer) {
			size, _ = stream.NextMessageSize()
		}
		if size <= len(*buf) {
			return n, err
		}
		if size > maxPacket+1 {
			return 0, refusal(codeMalformed)
		}
		*buf = make([]byte, size)
	}
}

// receiveDatagrams passes on the datagrams of the session.
func (s *session) receiveDatagrams(ctx context.Context) {
	for {
		b, err := s.conn.ReceiveDatagram(ctx)
		if err != nil {
			return
		}
		if len(b) < 4 {
			continue
		}
		s.mu.Lock()
		f := s.flows[binary.BigEndian.Uint32(b)]
		s.mu.Unlock()
		if f != nil {
			f.touch()
			s.tally.receive(len(b) - 4)
			f.deliver(b[4:])
		}
	}
}

// handleFlow carries out the opening of a flow of the peer. Messages are not in
// order: what overtakes the opening waits for it.
func (s *session) handleFlow(ctx context.Context, stream *kcp.Stream) {
	o, early, err := readFlowOpening(stream)
	if err != nil {
		s.refuse(stream, o, err)
		return
	}
	began := time.Now()
	conn, err := s.dial(ctx, "udp", &o)
	if err != nil {
		s.refuse(stream, o, err)
		return
	}
	f := s.newFlow(stream, func(packet []byte) { _, _ = conn.Write(packet) })
	f.known.Store(true) // the opener knows its own flow
	if err := stream.WriteMessage([]byte{messageControl, statusOpen}); err != nil {
		f.end(codeFailed)
	}
	for _, packet := range early {
		s.tally.receive(len(packet))
		f.deliver(packet)
	}
	s.opened.Add(1)
	var reading sync.WaitGroup
	reading.Go(func() { readPackets(conn, f) })
	err = f.run()
	_ = conn.Close()
	reading.Wait()
	s.log.Debug("flow ended", "kind", o.kind, "target", o.target, since(began), cause(err))
}

// readFlowOpening reads the messages of a flow up to the opening. It returns the
// packets before it.
func readFlowOpening(stream *kcp.Stream) (o opening, early [][]byte, err error) {
	_ = stream.SetReadDeadline(time.Now().Add(openDeadline))
	defer stream.SetReadDeadline(time.Time{})
	buf := make([]byte, 2048)
	for {
		n, err := readMessage(stream, &buf)
		switch {
		case err != nil:
			return o, nil, err
		case n == 0:
		case buf[0] == messageControl:
			o, err = readOpening(bytes.NewReader(buf[1:n]))
			if err == nil && !o.kind.packets() {
				err = refusal(codeMalformed)
			}
			return o, early, err
		case len(early) < flowQueue:
			early = append(early, bytes.Clone(buf[1:n]))
		}
	}
}

// readPackets passes the packets of a target to a flow until it is closed.
func readPackets(conn net.Conn, f *flow) {
	buf := make([]byte, maxPacket)
	for failed := 0; failed < 100; {
		n, err := conn.Read(buf)
		switch {
		case err == nil:
			failed = 0
			f.send(buf[:n])
		case errors.Is(err, net.ErrClosed):
			return
		default: // such as ICMP's port unreachable: nobody listens there now
			failed++
		}
	}
	f.end(codeFailed)
}

// flowKey is whose packets are of one flow: those of a sender, at one address of this
// host, to one target.
type flowKey struct {
	from   netip.AddrPort
	at     udp.Local // what comes back leaves from there
	target string
}

// front is a UDP socket of which each sender, and with SOCKS5 each of its targets,
// has a flow.
type front struct {
	pc *net.UDPConn
	// open opens the stream of a new flow.
	open func(target string) (*session, *kcp.Stream, error)
	// split returns where a packet is to go, and its payload; nil: all of it to
	// the one target that open knows.
	split func(from netip.AddrPort, packet []byte) (target string, payload []byte, ok bool)
	// wrap returns the packet for the sender; nil: the payload.
	wrap func(target string, payload []byte) []byte
	log  *slog.Logger

	conn  udp.Conn // moves the packets of pc
	flows sync.WaitGroup
	mu    sync.Mutex
	byKey map[flowKey]*flow // nil for those that are being opened, or were refused
}

// serve takes packets until the socket is closed, and ends the flows then.
func (fr *front) serve() {
	fr.byKey = make(map[flowKey]*flow)
	fr.conn = udp.New(fr.pc)
	batch := make([]udp.Datagram, 1)
	for {
		_, err := fr.conn.ReadBatch(batch)
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err != nil {
			continue // an ICMP error of an earlier packet
		}
		d := &batch[0]
		target, payload := "", d.Buf
		if fr.split != nil {
			var ok bool
			if target, payload, ok = fr.split(d.Addr, payload); !ok {
				continue
			}
		}
		fr.take(flowKey{d.Addr, d.Local, target}, payload)
	}
	fr.mu.Lock()
	for _, f := range fr.byKey {
		if f != nil {
			f.end(codeGone)
		}
	}
	fr.mu.Unlock()
	fr.flows.Wait()
}

// take sends a packet on its flow, which it opens if there is none.
func (fr *front) take(key flowKey, payload []byte) {
	fr.mu.Lock()
	f, there := fr.byKey[key]
	full := len(fr.byKey) >= frontFlows
	fr.mu.Unlock()
	if f != nil {
		f.send(payload)
	}
	if there || full {
		return
	}
	s, stream, err := fr.open(key.target)
	if err != nil {
		fr.log.Debug("flow not opened", text("target", key.target), "from", key.from, "error", err)
		return
	}
	f = s.newFlow(stream, func(packet []byte) {
		if fr.wrap != nil {
			packet = fr.wrap(key.target, packet)
		}
		_, _ = fr.conn.WriteBatch([]udp.Datagram{{Buf: packet, Addr: key.from, Local: key.at}})
	})
	fr.mu.Lock()
	fr.byKey[key] = f
	fr.mu.Unlock()
	f.send(payload)
	fr.flows.Go(func() { fr.run(key, f) })
}

// run runs a flow to its end. If the peer has refused it, the sender's packets are
// dropped for a while, so that it is not opened for each of them.
func (fr *front) run(key flowKey, f *flow) {
	err := f.run()
	remove := func() {
		fr.mu.Lock()
		delete(fr.byKey, key)
		fr.mu.Unlock()
	}
	var why refusal
	if errors.As(err, &why) && why != codeIdle && why != codeGone && why != codeShutdown {
		fr.log.Info("packets refused", text("target", key.target), "from", key.from, "error", err)
		fr.mu.Lock()
		fr.byKey[key] = nil
		fr.mu.Unlock()
		time.AfterFunc(refusedRest, remove)
		return
	}
	remove()
}
