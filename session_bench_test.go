package kcp

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/udp"
)

// BenchmarkEcho sends a small message to a peer and back, through sessions and
// endpoints but without sockets: what packets cost beside system calls.
func BenchmarkEcho(b *testing.B) {
	const size = 64
	left, right := newWire("10.0.0.1:1"), newWire("10.0.0.2:2")
	a, z := joined(b, left, right)
	message := make([]byte, size)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		for _, way := range []struct{ from, to *Conn }{{a, z}, {z, a}} {
			if _, err := way.from.Write(message); err != nil {
				b.Fatal(err)
			}
			deliver(way.from, way.to)
			if _, err := io.ReadFull(way.to, message); err != nil {
				b.Fatal(err)
			}
		}
	}
}

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

// joined returns both ends of a session.
func joined(b testing.TB, left, right *wire) (a, z *Conn) {
	return joinedWith(b, left, right, &Config{})
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
	carry(to.ep.socket.shards[0].pc.(*wire), from.ep)
	carry(from.ep.socket.shards[0].pc.(*wire), to.ep)
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
