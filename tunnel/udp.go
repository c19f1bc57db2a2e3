package tunnel

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/tunnel/internal/carrier"
	"github.com/arqnet/kcp/tunnel/internal/flowtable"
	"github.com/arqnet/kcp/tunnel/internal/replylimit"
)

const (
	// maxPacket is the largest UDP payload, over IPv6.
	maxPacket = 65527
	// packetLifetime is how long a packet that fits into no datagram may be sent.
	packetLifetime = time.Second
	// flowQueue is how many packets of a flow may wait for room in the session, or for
	// the opening of the flow.
	flowQueue = 64
)

// The messages of a flow's stream begin with one of these. Packets that fit travel
// as datagrams of the session instead, with the number of the stream in front (4
// bytes), once the peer knows it.
const (
	messageControl = 0 // an opening, or the answer to it
	messagePacket  = 1
)

// A packet comes from the socket of a target, or from a front (udp_front.go), which knows
// whose flow it is. flow.send puts it into the queue of the session (udp_queue.go), from
// which one goroutine takes it and sends it: as a datagram, or as a message of the flow's
// stream, which waits in the flow while the session has no room. At the other end
// flow.arrived delivers it. The account of the user has the table of all flows, which says
// when they end.

// flow is a flow of UDP packets over a session. Its stream begins and ends it, and
// carries what fits into no datagram. While no packet passes it has no buffer, and
// one goroutine that waits for the stream. A flow to a target has one more, which waits
// for the socket.
type flow struct {
	s       *session
	stream  carrier.Stream
	deliver func(packet []byte)   // must not wait
	begun   bool                  // at this end, which waits for an answer
	replies *replylimit.Limit     // what the sender may be sent; nil: there is no limit
	place   flowtable.Entry[flow] // guarded by account.mu
	known   atomic.Bool           // the peer knows the flow: datagrams will find it
	sending sync.WaitGroup        // sendWaiting
	carried *carried

	mu      sync.Mutex
	ended   bool
	waiting [][]byte // messages that wait for room in the session
}

// newFlow returns the flow of a stream, which is known to datagrams from now on. With
// begun this end has opened it.
func (s *session) newFlow(stream carrier.Stream, begun bool, about subject, deliver func([]byte)) *flow {
	f := &flow{s: s, stream: stream, begun: begun, deliver: deliver, carried: s.carries(about, true)}
	f.place.Owner = f
	s.mu.Lock()
	if s.flows == nil {
		s.flows = make(map[uint32]*flow)
	}
	s.flows[stream.ID()] = f
	over := s.over
	if s.outgoing == nil {
		s.outgoing = &packetQueue{account: s.account, wake: make(chan struct{}, 1), over: over}
		if !over {
			s.serving.Go(s.sendPackets)
		}
	}
	s.mu.Unlock()
	s.account.add(f)
	if over {
		f.end(codeShutdown)
	}
	return f
}

// end resets the flow. It may be called any number of times.
func (f *flow) end(code refusal) {
	f.mu.Lock()
	ended := f.ended
	f.ended = true
	f.mu.Unlock()
	if ended {
		return
	}
	f.s.account.remove(f)
	_ = f.stream.Reset(uint64(code))
}

// send sends a packet to the other end, and keeps it meanwhile. It does not wait.
func (f *flow) send(packet []byte) {
	f.s.account.pass(f, !f.begun)
	f.s.outgoing.push(f, packet)
}

// transmit sends a packet as a datagram if it can, else as a message. It returns frame,
// which is memory for it.
func (f *flow) transmit(frame, packet []byte) []byte {
	if d, ok := f.s.conn.(carrier.Datagrams); ok && f.known.Load() && 4+len(packet) <= d.MaxDatagramSize() {
		frame = append(binary.BigEndian.AppendUint32(frame[:0], f.stream.ID()), packet...)
		if d.SendDatagram(frame) == nil {
			f.carried.send(len(packet))
			return frame // it may have become too large meanwhile
		}
	}
	frame = append(append(frame[:0], messagePacket), packet...)
	err := f.stream.WriteMessage(frame, &kcp.MessageOptions{NoWait: true, Lifetime: packetLifetime})
	if errors.Is(err, kcp.ErrWouldBlock) {
		f.wait(bytes.Clone(frame))
	} else if err == nil {
		f.carried.send(len(packet))
	}
	if cap(frame) > largeRead {
		return nil
	}
	return frame
}

// wait has a message sent when there is room.
func (f *flow) wait(message []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended || len(f.waiting) >= flowQueue || !f.s.account.keepPacket(len(message)) {
		return
	}
	f.waiting = append(f.waiting, message)
	if len(f.waiting) == 1 {
		f.sending.Go(f.sendWaiting)
	}
}

// sendWaiting sends the messages that wait, and ends with the last one, or the flow.
func (f *flow) sendWaiting() {
	for {
		f.mu.Lock()
		message := f.waiting[0]
		f.mu.Unlock()
		if err := f.stream.WriteMessage(message, &kcp.MessageOptions{Lifetime: packetLifetime}); err == nil {
			f.carried.send(len(message) - 1)
		}
		f.s.account.dropPacket(len(message))
		f.mu.Lock()
		f.waiting = f.waiting[1:]
		left := len(f.waiting)
		if left == 0 {
			f.waiting = nil
		}
		f.mu.Unlock()
		if left == 0 {
			return
		}
	}
}

// run carries packets until the flow ends, and returns why if the peer has ended it.
func (f *flow) run() error {
	err := f.receive()
	f.end(codeGone)
	f.sending.Wait()
	f.s.release(f.stream)
	f.s.mu.Lock()
	delete(f.s.flows, f.stream.ID())
	f.s.mu.Unlock()
	f.carried.ended()
	return err
}

// receive passes on the packets of the stream until that ends.
func (f *flow) receive() error {
	for {
		message, err := readMessage(f.stream)
		if err != nil {
			return refused(err)
		}
		f.take(message)
		returnMessage(message)
	}
}

// take passes on what a message holds.
func (f *flow) take(message []byte) {
	if len(message) == 0 {
		return
	}
	f.known.Store(true)
	if message[0] == messagePacket {
		f.arrived(message[1:])
	}
}

// arrived passes on a packet of the other end.
func (f *flow) arrived(packet []byte) {
	f.s.account.pass(f, f.begun)
	f.carried.receive(len(packet))
	f.deliver(packet)
}

// messages are buffers of the largest size, for messages of more than smallRead bytes.
var messages = sync.Pool{New: func() any { return new([maxPacket + 1]byte) }}

// readMessage waits for a message without a buffer, and reads it into one that
// returnMessage takes back.
func readMessage(stream carrier.Stream) ([]byte, error) {
	for {
		_, err := stream.ReadMessage(nil)
		if !errors.Is(err, io.ErrShortBuffer) {
			if err == nil {
				return nil, nil // it was empty
			}
			return nil, err
		}
		size, ok := stream.NextMessageSize()
		switch {
		case !ok:
			continue // the next ReadMessage says why
		case size > maxPacket+1:
			return nil, refusal(codeMalformed)
		}
		var buf []byte
		if size > smallRead {
			buf = messages.Get().(*[maxPacket + 1]byte)[:size]
		} else {
			buf = make([]byte, size)
		}
		n, err := stream.ReadMessage(buf)
		if err == nil {
			return buf[:n], nil
		}
		returnMessage(buf)
		return nil, err
	}
}

// returnMessage takes back the buffer of a message.
func returnMessage(message []byte) {
	if cap(message) == maxPacket+1 {
		messages.Put((*[maxPacket + 1]byte)(message[:cap(message)]))
	}
}

// receiveDatagrams passes on the datagrams of the session.
func (s *session) receiveDatagrams(ctx context.Context, of carrier.Datagrams) {
	for {
		b, err := of.ReceiveDatagram(ctx)
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
			f.arrived(b[4:])
		}
	}
}

// handleFlow carries out the opening of a flow of the peer. Messages are not in
// order: what overtakes the opening waits for it.
func (s *session) handleFlow(ctx context.Context, stream carrier.Stream) {
	o, early, err := s.readFlowOpening(stream)
	defer func() {
		for _, packet := range early {
			s.account.dropPacket(len(packet))
		}
	}()
	if err != nil {
		s.refuse(stream, o, err)
		return
	}
	began := time.Now()
	s.account.beginFlow()
	conn, err := s.dial(ctx, stream, "udp", &o)
	if err != nil {
		s.account.endFlow()
		s.refuse(stream, o, err)
		return
	}
	f := s.newFlow(stream, false, subject{s.role.remote(o), o.target, true}, func(packet []byte) { _, _ = conn.Write(packet) })
	f.known.Store(true) // the opener knows its own flow
	if err := stream.WriteMessage([]byte{messageControl, statusOpen}, nil); err != nil {
		f.end(codeFailed)
	}
	for _, packet := range early {
		f.carried.receive(len(packet))
		f.deliver(packet)
		s.account.dropPacket(len(packet))
	}
	early = nil
	s.opened.Add(1)
	s.serving.Go(func() { // on a small stack: this goroutine's has grown
		err := f.carry(conn.(*net.UDPConn))
		s.account.endFlow()
		s.log.Debug("flow ended", "kind", o.kind, "target", o.target, since(began), cause(err))
	})
}

// carry carries the packets of a flow to and from its target, and returns why the peer
// has ended it.
func (f *flow) carry(conn *net.UDPConn) error {
	var reading sync.WaitGroup
	reading.Go(func() { readPackets(conn, f) })
	err := f.run()
	_ = conn.Close()
	reading.Wait()
	return err
}

// readFlowOpening reads the messages of a flow up to the opening. It returns the
// packets before it, which are on the account.
func (s *session) readFlowOpening(stream carrier.Stream) (o opening, early [][]byte, err error) {
	_ = stream.SetReadDeadline(time.Now().Add(openDeadline))
	defer stream.SetReadDeadline(time.Time{})
	for {
		message, err := readMessage(stream)
		switch {
		case err != nil:
			return o, early, err
		case len(message) == 0:
		case message[0] == messageControl:
			o, err = readOpening(bytes.NewReader(message[1:]))
			if err == nil && !o.kind.packets() {
				err = refusal(codeMalformed)
			}
			return o, early, err
		case len(early) < flowQueue && s.account.keepPacket(len(message)-1):
			early = append(early, bytes.Clone(message[1:]))
		}
		returnMessage(message)
	}
}

// readPackets passes the packets of a target to a flow until the socket is closed.
func readPackets(conn *net.UDPConn, f *flow) {
	r, err := newPacketReader(conn)
	if err != nil {
		f.end(codeFailed)
		return
	}
	for failed := 0; failed < 100; {
		packet, err := r.next()
		switch {
		case err == nil:
			failed = 0
			f.send(packet)
		case errors.Is(err, net.ErrClosed):
			return
		default: // such as ICMP's port unreachable: nobody listens there now
			failed++
		}
	}
	f.end(codeFailed)
}
