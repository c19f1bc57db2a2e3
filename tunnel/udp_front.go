package tunnel

import (
	"bytes"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/tunnel/internal/carrier"
	"github.com/arqnet/kcp/tunnel/internal/replylimit"
)

const (
	// refusedRest is how long packets of a sender are dropped whose flow the peer
	// has refused. maxRests is for how many senders of a socket at a time.
	refusedRest = time.Second
	maxRests    = 1024
)

// flowKey is whose packets are of one flow: the packets of a sender, at one address of
// this host, to one target.
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
	open func(target string) (*session, carrier.Stream, error)
	// split returns where a packet is to go, and its payload; nil: all of it to
	// the one target that open knows.
	split func(from netip.AddrPort, packet []byte) (target string, payload []byte, ok bool)
	// wrap returns the packet for the sender; nil: the payload.
	wrap func(target string, payload []byte) []byte
	log  *slog.Logger
	// remote is what the flows count for.
	remote string
	// lean has the socket, which is bound to one address, read without a buffer of its
	// own, so that there may be many of them.
	lean bool
	// limited bounds what is sent to senders who have not answered: others than those
	// who may send here can forge packets of any address.
	limited bool

	conn  udp.Conn // moves the packets of pc
	flows sync.WaitGroup
	mu    sync.Mutex
	byKey map[flowKey]*flow // nil for those that were refused
	rests int               // of byKey, those that were refused
	began time.Time
	said  fair.Limit // of records that packets were not sent
}

// serve takes packets until the socket is closed, and ends the flows then.
func (fr *front) serve() {
	fr.byKey, fr.began = make(map[flowKey]*flow), time.Now()
	fr.conn = udp.New(fr.pc)
	read := fr.readBatch
	if fr.lean {
		read = fr.readLean
	}
	for {
		d, done, err := read()
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err != nil {
			continue // an ICMP error of an earlier packet
		}
		fr.route(d)
		done()
	}
	fr.mu.Lock()
	flows := slices.Collect(maps.Values(fr.byKey))
	fr.mu.Unlock()
	for _, f := range flows {
		if f != nil {
			f.end(codeGone)
		}
	}
	fr.flows.Wait()
}

// readBatch waits for a packet. It is valid until done is called.
func (fr *front) readBatch() (d udp.Datagram, done func(), err error) {
	batch := make([]udp.Datagram, 1)
	_, err = fr.conn.ReadBatch(batch)
	return batch[0], func() {}, err
}

// readLean is readBatch, and has a buffer only while there is a packet.
func (fr *front) readLean() (d udp.Datagram, done func(), err error) {
	if err := awaitPacket(fr.pc); err != nil {
		return d, nil, err
	}
	buf := messages.Get().(*[maxPacket + 1]byte)
	n, from, err := fr.pc.ReadFromUDPAddrPort(buf[:])
	if err != nil {
		messages.Put(buf)
		return d, nil, err
	}
	return udp.Datagram{Buf: buf[:n], Addr: udp.Unmap(from)}, func() { messages.Put(buf) }, nil
}

// route takes a packet to its flow.
func (fr *front) route(d udp.Datagram) {
	target, payload := "", d.Buf
	if fr.split != nil {
		var ok bool
		if target, payload, ok = fr.split(d.Addr, payload); !ok {
			return
		}
	}
	fr.take(flowKey{d.Addr, d.Local, target}, payload)
}

// take sends a packet on its flow, which it opens if there is none.
func (fr *front) take(key flowKey, payload []byte) {
	fr.mu.Lock()
	f, there := fr.byKey[key]
	fr.mu.Unlock()
	if f != nil {
		f.replies.Received(len(payload))
		f.send(bytes.Clone(payload))
	}
	if there {
		return
	}
	s, stream, err := fr.open(key.target)
	if err != nil {
		fr.log.Debug("flow not opened", text("target", key.target), "from", key.from, "error", err)
		return
	}
	s.account.beginFlow()
	var replies *replylimit.Limit
	if fr.limited {
		replies = new(replylimit.Limit)
		replies.Received(len(payload))
	}
	f = s.newFlow(stream, true, subject{remote: fr.remote, target: key.target}, func(packet []byte) {
		if !replies.Take(len(packet)) {
			fr.notSent(key)
			return
		}
		if fr.wrap != nil {
			packet = fr.wrap(key.target, packet)
		}
		_, _ = fr.conn.WriteBatch([]udp.Datagram{{Buf: packet, Addr: key.from, Local: key.at}})
	})
	f.replies = replies
	fr.mu.Lock()
	fr.byKey[key] = f
	fr.mu.Unlock()
	f.send(bytes.Clone(payload))
	fr.flows.Go(func() {
		fr.run(key, f)
		s.account.endFlow()
	})
}

// run runs a flow to its end. If the peer has refused it, the sender's packets are
// dropped for a while, so that it is not opened for each of them.
func (fr *front) run(key flowKey, f *flow) {
	err := f.run()
	var why refusal
	rests := errors.As(err, &why) && why != codeIdle && why != codeGone && why != codeShutdown
	if rests {
		fr.log.Info("packets refused", text("target", key.target), "from", key.from, "error", err)
	}
	fr.mu.Lock()
	defer fr.mu.Unlock()
	delete(fr.byKey, key)
	if rests && fr.rests < maxRests {
		fr.byKey[key] = nil
		fr.rests++
		time.AfterFunc(refusedRest, func() {
			fr.mu.Lock()
			defer fr.mu.Unlock()
			delete(fr.byKey, key)
			fr.rests--
		})
	}
}

// notSentEvery is how often a record says that packets were not sent.
const notSentEvery = time.Minute

// notSent logs that the limit of a sender has stopped a packet.
func (fr *front) notSent(key flowKey) {
	_, say := fr.said.Allow(time.Since(fr.began), notSentEvery, 1)
	if say {
		fr.log.Warn("packets not sent: their receiver has not answered, and has got three times what came from it", "to", key.from)
	}
}
