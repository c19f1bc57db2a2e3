package main

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/netsim"
	"github.com/quic-go/quic-go"
	"github.com/xtaci/smux"
)

// The suites paths and streams run complete sessions of all implementations over a
// virtual network, in virtual time.
//
// Figures of this module repeat to the last digit, as kcp.Config.Repetition has it.
// Figures of the others differ by some percent from run to run, though losses fall on
// the same packets: goroutines of theirs run at the same instant, and quic-go draws
// from crypto/rand what changes the sizes of its packets.

// world is a network of two hosts.
type world struct {
	network    *netsim.Network
	repetition *netsim.Repetition // of all endpoints of this module
	ports      uint16             // in use
	turn       sync.Mutex         // of all of kcp-go, which has one clock
	closes     []func()
}

const (
	senderHost   = "10.0.0.2" // it dials
	receiverHost = "10.0.0.1"
)

func newWorld(seed uint64, link netsim.LinkConfig) *world {
	return &world{network: netsim.NewNetwork(seed, link), repetition: netsim.NewRepetition(seed)}
}

// close ends everything, the last first.
func (w *world) close() {
	for i := range w.closes {
		w.closes[len(w.closes)-1-i]()
	}
	time.Sleep(time.Minute) // what goes on in the background ends
}

func (w *world) atEnd(f func()) { w.closes = append(w.closes, f) }

// pair is an implementation between the two hosts.
type pair struct {
	// The ends of the session itself; nil if there are only streams.
	near, far io.ReadWriter
	// stream opens a stream; nil if there are none.
	stream func(priority int) (near, far io.ReadWriter, err error)
	// counts returns the segments that were sent, and those of them that had been sent
	// before.
	counts func() (segments, again float64)
}

// open opens a pair. The window is of kcp-go, in segments.
func (w *world) open(impl string, window int) (*pair, error) {
	var s [2]net.PacketConn
	for i, host := range []string{senderHost, receiverHost} {
		pc, err := w.network.Listen(netip.AddrPortFrom(netip.MustParseAddr(host), 4000+w.ports).String())
		if err != nil {
			return nil, err
		}
		s[i] = pc
		w.atEnd(func() { _ = pc.Close() })
	}
	w.ports++
	switch impl {
	case kcpGo, kcpGoSmux:
		return w.openKCPGo(s, window, impl == kcpGoSmux)
	case quicGo:
		return w.openQUIC(s)
	case kcpCubic:
		return w.openKCP(s, kcp.Config{CongestionControl: congestion.NewCubic})
	}
	return w.openKCP(s, kcp.Config{})
}

func (w *world) openKCP(s [2]net.PacketConn, config kcp.Config) (*pair, error) {
	config.Repetition = w.repetition
	var ends [2]*kcp.Endpoint
	for i := range s {
		e, err := kcp.NewEndpoint(s[i], &config)
		if err != nil {
			return nil, err
		}
		ends[i] = e
		w.atEnd(func() { _ = e.Close() })
	}
	ctx := context.Background()
	l, err := ends[1].Listen()
	if err != nil {
		return nil, err
	}
	near, err := ends[0].Dial(ctx, l.Addr(), nil)
	if err != nil {
		return nil, err
	}
	far, err := l.AcceptKCP(ctx)
	if err != nil {
		return nil, err
	}
	w.atEnd(func() { _, _ = near.Abort(0, ""), far.Abort(0, "") })
	return &pair{near, far, func(priority int) (io.ReadWriter, io.ReadWriter, error) {
		to, err := near.OpenStream(ctx, &kcp.StreamOptions{Priority: priority})
		if err != nil {
			return nil, nil, err
		}
		from, err := far.AcceptStream(ctx)
		return to, from, err
	}, func() (segments, again float64) {
		s := near.Stats()
		return float64(s.SegmentsSent + s.Retransmits()), float64(s.Retransmits())
	}}, nil
}

func (w *world) openKCPGo(s [2]net.PacketConn, window int, streams bool) (*pair, error) {
	impl := newKCPGoImpl(1, 10, 2, 1, window, 0)
	first, counts := counted(impl)
	var ends [2]*driven
	for i, impl := range []simImpl{first, impl} {
		c, err := newDriven(&w.turn, impl, s[i], s[1-i].LocalAddr(), window)
		if err != nil {
			return nil, err
		}
		ends[i] = c
		w.atEnd(func() { _ = c.Close() })
	}
	if !streams {
		return &pair{ends[0], ends[1], nil, counts}, nil
	}
	config := smux.DefaultConfig() // which is to hold nothing back
	config.Version, config.KeepAliveDisabled = 2, true
	config.MaxReceiveBuffer, config.MaxStreamBuffer = 64<<20, 16<<20
	far, err := smux.Server(ends[1], config)
	if err != nil {
		return nil, err
	}
	near, err := smux.Client(ends[0], config)
	if err != nil {
		return nil, err
	}
	w.atEnd(func() { _, _ = near.Close(), far.Close() })
	return &pair{nil, nil, func(int) (io.ReadWriter, io.ReadWriter, error) {
		to, err := near.OpenStream()
		if err != nil {
			return nil, nil, err
		}
		from, err := far.AcceptStream()
		return to, from, err
	}, counts}, nil
}

// virtualQUIC has a size of packets that is discovered: with another InitialPacketSize
// v0.59's pacer has a size of its own, and may wait for ever without letting time pass.
var virtualQUIC = &quic.Config{
	InitialStreamReceiveWindow:     16 << 20,
	MaxStreamReceiveWindow:         64 << 20,
	InitialConnectionReceiveWindow: 16 << 20,
	MaxConnectionReceiveWindow:     64 << 20,
	MaxIdleTimeout:                 time.Minute,
}

func (w *world) openQUIC(s [2]net.PacketConn) (*pair, error) {
	server, client, err := selfSigned()
	if err != nil {
		return nil, err
	}
	dialling, listening := &quic.Transport{Conn: s[0]}, &quic.Transport{Conn: s[1]}
	w.atEnd(func() { _, _ = dialling.Close(), listening.Close() })
	ctx := context.Background()
	l, err := listening.Listen(server, virtualQUIC)
	if err != nil {
		return nil, err
	}
	near, err := dialling.Dial(ctx, s[1].LocalAddr(), client, virtualQUIC)
	if err != nil {
		return nil, err
	}
	far, err := l.Accept(ctx)
	if err != nil {
		return nil, err
	}
	w.atEnd(func() { _, _, _ = near.CloseWithError(0, ""), far.CloseWithError(0, ""), l.Close() })
	return &pair{nil, nil, func(int) (io.ReadWriter, io.ReadWriter, error) {
		to, err := near.OpenStreamSync(ctx)
		if err != nil {
			return nil, nil, err
		}
		if _, err = to.Write([]byte{greeting}); err != nil { // the other end learns of it
			return nil, nil, err
		}
		from, err := far.AcceptStream(ctx)
		if err != nil {
			return nil, nil, err
		}
		return to, from, wantGreeting(from)
	}, func() (segments, again float64) {
		s := near.ConnectionStats()
		return float64(s.PacketsSent), float64(s.PacketsLost)
	}}, nil
}

// counted is impl with counts of what the first end sends.
func counted(impl simImpl) (first simImpl, counts func() (segments, again float64)) {
	var segments, distinct atomic.Int64
	first = func(output func([]byte)) (driver, error) {
		return impl(func(packet []byte) {
			const header, push = 24, 81
			for p := packet; len(p) >= header; p = p[header+binary.LittleEndian.Uint32(p[20:]):] {
				if p[4] != push {
					continue
				}
				segments.Add(1)
				if int64(binary.LittleEndian.Uint32(p[12:])) == distinct.Load() {
					distinct.Add(1)
				}
			}
			output(packet)
		})
	}
	return first, func() (float64, float64) {
		all := segments.Load()
		return float64(all), float64(all - distinct.Load())
	}
}

// driven is a net.Conn over a driver, as kcp-go's UDPSession is over its state
// machine; in virtual time, where kcp-go's own timers do not run.
type driven struct {
	mu     *sync.Mutex
	change sync.Cond
	d      driver
	socket net.PacketConn
	peer   net.Addr
	start  time.Time
	window int // segments that may wait
	closed bool
	buf    []byte
}

func newDriven(turn *sync.Mutex, impl simImpl, socket net.PacketConn, peer net.Addr, window int) (*driven, error) {
	c := &driven{mu: turn, socket: socket, peer: peer, start: time.Now(), window: window}
	c.change.L = turn
	var err error
	c.d, err = impl(func(packet []byte) { _, _ = c.socket.WriteTo(packet, c.peer) })
	if err == nil {
		go c.readPackets()
		go c.tick()
	}
	return c, err
}

func (c *driven) now() time.Duration { return time.Since(c.start) }

// readPackets feeds the driver until the socket is closed.
func (c *driven) readPackets() {
	b := make([]byte, 2048)
	for {
		n, _, err := c.socket.ReadFrom(b)
		if err != nil {
			return
		}
		c.mu.Lock()
		if c.d.input(c.now(), b[:n]) == nil {
			c.d.answer(c.now())
		}
		c.change.Broadcast()
		c.mu.Unlock()
	}
}

// tick wakes the driver until the connection is closed.
func (c *driven) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.closed {
		at, ok := c.d.next(c.now())
		if ok && at <= c.now() {
			c.d.wake(c.now())
			c.change.Broadcast()
			continue
		}
		c.mu.Unlock()
		time.Sleep(max(at-c.now(), time.Millisecond))
		c.mu.Lock()
	}
}

func (c *driven) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if c.closed {
			return 0, net.ErrClosed
		}
		if len(c.buf) > 0 {
			n := copy(p, c.buf)
			c.buf = c.buf[n:]
			return n, nil
		}
		b := make([]byte, 1<<16)
		n, err := c.d.read(c.now(), b)
		if err != nil {
			return 0, err
		}
		if c.buf = b[:n]; n == 0 {
			c.change.Wait()
		}
	}
}

func (c *driven) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.d.backlog() >= c.window && !c.closed {
		c.change.Wait()
	}
	if c.closed {
		return 0, net.ErrClosed
	}
	return len(p), c.d.write(c.now(), p)
}

func (c *driven) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.change.Broadcast()
	return nil
}

// frozen calls f in a bubble of virtual time, where the clock of the time package stands
// still while anything runs. kcp-go reads that clock; setKCPGoClock alone would let it go
// on during a call.
func frozen(f func() error) (err error) {
	synctest.Test(new(testing.T), func(*testing.T) { err = f() })
	return err
}
