package kcp

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/udp"
)

// pipe joins two state machines in memory.
type pipe struct {
	a, b   *KCP
	toA    []pipePacket
	toB    []pipePacket
	free   [][]byte
	now    uint32
	random *rand.Rand
	batch  int    // segments sent in a millisecond
	delay  uint32 // of ACKs, in milliseconds
}

type pipePacket struct {
	data []byte
	sent uint32
}

func newPipe(tb testing.TB, window int, loss float64) *pipe {
	p := &pipe{random: rand.New(rand.NewPCG(1, 2)), batch: 64, delay: uint32(window / 64)}
	link := func(queue *[]pipePacket) func([]byte) {
		return func(packet []byte) {
			if loss > 0 && p.random.Float64() < loss {
				return
			}
			var c []byte
			if n := len(p.free); n > 0 {
				c, p.free = p.free[n-1], p.free[:n-1]
			}
			*queue = append(*queue, pipePacket{append(c[:0], packet...), p.now})
		}
	}
	p.a = New(1, link(&p.toB))
	p.b = New(1, link(&p.toA))
	for _, k := range []*KCP{p.a, p.b} {
		if err := k.SetWindow(window, window); err != nil {
			tb.Fatal(err)
		}
		k.SetNoDelay(NoDelayOn)
		k.SetFastResend(2)
		k.SetCongestionControl(congestion.NewNone())
		if err := k.SetInterval(10); err != nil {
			tb.Fatal(err)
		}
	}
	return p
}

// run moves n payloads from a to b, a batch in a millisecond. By default, ACKs
// take as many milliseconds to come back as it takes to fill the window.
func (p *pipe) run(n int, payload, buf []byte) {
	window := int(p.a.cfg.sndWnd)
	for sent, received := 0, 0; received < n; {
		for i := 0; i < p.batch && sent < n && p.a.span() < window; i++ {
			if _, err := p.a.Send(payload); err != nil {
				panic(err)
			}
			sent++
		}
		p.now++
		p.a.SetClock(p.now)
		p.a.Flush()
		p.deliver(&p.toB, p.b, 0)
		for p.b.PeekSize() >= 0 {
			if _, err := p.b.Recv(buf); err != nil {
				panic(err)
			}
			received++
		}
		p.b.SetClock(p.now)
		p.b.Flush()
		p.deliver(&p.toA, p.a, p.delay)
	}
}

// turn flushes both ends and delivers everything, at one time.
func (p *pipe) turn() {
	p.a.SetClock(p.now)
	p.b.SetClock(p.now)
	p.a.Flush()
	p.deliver(&p.toB, p.b, 0)
	p.b.Flush()
	p.deliver(&p.toA, p.a, 0)
}

// deliver hands to k the packets of queue that are at least delay old.
func (p *pipe) deliver(queue *[]pipePacket, k *KCP, delay uint32) {
	n := 0
	for _, packet := range *queue {
		if p.now-packet.sent < delay {
			break
		}
		if err := k.Input(packet.data); err != nil {
			panic(err)
		}
		p.free = append(p.free, packet.data)
		n++
	}
	*queue = append((*queue)[:0], (*queue)[n:]...)
}

// span returns how much of the window is taken, holes included.
func (k *KCP) span() int { return int(k.snd.nxt-k.snd.una) + k.snd.queue.n }

// wire is a socket whose packets are carried by hand.
type wire struct {
	addr *net.UDPAddr
	done chan struct{}

	mu      sync.Mutex // sessions write from timers too
	packets [][]byte
	carried [][]byte // what take has returned last
}

func newWire(addr string) *wire {
	return &wire{addr: net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr)), done: make(chan struct{})}
}

func (w *wire) WriteTo(p []byte, _ net.Addr) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.packets) < cap(w.packets) {
		w.packets = w.packets[:len(w.packets)+1]
	} else {
		w.packets = append(w.packets, nil)
	}
	last := &w.packets[len(w.packets)-1]
	*last = append((*last)[:0], p...)
	return len(p), nil
}

func (w *wire) ReadFrom([]byte) (int, net.Addr, error) {
	<-w.done
	return 0, nil, net.ErrClosed
}

func (w *wire) Close() error                     { close(w.done); return nil }
func (w *wire) LocalAddr() net.Addr              { return w.addr }
func (w *wire) SetDeadline(time.Time) error      { return nil }
func (w *wire) SetReadDeadline(time.Time) error  { return nil }
func (w *wire) SetWriteDeadline(time.Time) error { return nil }

// take returns what was written since the last call, until the next one.
func (w *wire) take() [][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.carried, w.packets = w.packets, w.carried[:0]
	return w.carried
}

// joinedWith is joined with some settings.
func joinedWith(b testing.TB, left, right *wire, config *Config) (a, z *Conn) {
	config.DialTimeout, config.MaxMTU = -1, -1
	l, err := NewEndpoint(right, config)
	if err != nil {
		b.Fatal(err)
	}
	accepts, err := l.Listen()
	if err != nil {
		b.Fatal(err)
	}
	e, err := NewEndpoint(left, config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = left.Close()
		_ = right.Close()
		_, _ = e.Close(), l.Close()
	})
	if a, err = e.Dial(context.Background(), right.addr); err != nil {
		b.Fatal(err)
	}
	for range 4 {
		carry(left, l)
		carry(right, e)
	}
	if _, err := a.Write([]byte{1}); err != nil {
		b.Fatal(err)
	}
	carry(left, l)
	if z, err = accepts.AcceptKCP(context.Background()); err != nil {
		b.Fatal(err)
	}
	if _, err := io.ReadFull(z, make([]byte, 1)); err != nil {
		b.Fatal(err)
	}
	return a, z
}

// deliver carries what a session has sent to its peer, and before that what the
// peer's timers have sent.
func deliver(from, to *Conn) {
	carry(to.ep.socket.shards[0].conn().(*wire), from.ep)
	carry(from.ep.socket.shards[0].conn().(*wire), to.ep)
}

// carry carries what an endpoint has written to its socket to another.
func carry(from *wire, to *Endpoint) {
	batch := make([]udp.Datagram, 0, 8)
	for _, p := range from.take() {
		batch = append(batch, udp.Datagram{Buf: p, Addr: from.addr.AddrPort()})
	}
	if len(batch) > 0 {
		to.take(batch, &to.socket.shards[0].in, nil)
	}
}
