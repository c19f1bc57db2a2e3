package fuzz_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	kcp "github.com/arqnet/kcp"

	"github.com/arqnet/kcp/internal/testenv"
)

// TestHostileBetweenTakeovers is TestHostileSessions for the calls by which a process
// hands its socket to another, over the loopback interface. Where that is promised,
// sessions are not disturbed: those that stay, those of the successor, and those that
// remain if a takeover is given up.
func TestHostileBetweenTakeovers(t *testing.T) {
	eachHostileSeed(t, 20, 20, func(t *testing.T, seed uint64) {
		w := newTakeovers(t, seed)
		l, err := kcp.Listen("udp", "127.0.0.1:0", w.server)
		if err != nil {
			t.Fatal(err)
		}
		w.attacker.ends[1] = l.Addr().(*net.UDPAddr).AddrPort()
		w.attacker.rest(false)
		w.accept(l)
		var use sync.WaitGroup
		for range 2 + w.draw(3) {
			use.Go(w.client)
			l = w.handOver(l)
		}
		use.Go(w.client)
		use.Go(w.client)
		use.Wait()
		w.attacker.rest(true)
		for _, e := range w.all { // sessions that the attacker has opened have no peer
			_ = e.Close()
		}
		w.drained.Wait()
		w.apps.Wait()
	})
}

// takeovers is a server that is handed over some times, its clients, and an attacker.
type takeovers struct {
	*hostile
	server  *kcp.Config
	drained sync.WaitGroup // calls of HandOver
	all     []*kcp.Endpoint
}

// tapped is the socket of a client. The attacker sees its packets, of which some are lost.
type tapped struct {
	net.PacketConn
	tap  func(from, to netip.AddrPort, packet []byte) bool
	lost func() bool
}

func (c tapped) WriteTo(b []byte, to net.Addr) (int, error) {
	if c.tap(addrOf(c.LocalAddr()), addrOf(to), b); c.lost() {
		return len(b), nil
	}
	return c.PacketConn.WriteTo(b, to)
}

func (c tapped) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		n, from, err := c.PacketConn.ReadFrom(b)
		if err != nil || !c.lost() {
			if err == nil {
				c.tap(addrOf(from), addrOf(c.LocalAddr()), b[:n])
			}
			return n, from, err
		}
	}
}

// newTakeovers returns the world of a seed, without a server yet.
func newTakeovers(t *testing.T, seed uint64) *takeovers {
	w := &takeovers{hostile: &hostile{t: t, seed: seed, random: rand.New(rand.NewPCG(seed, 23)), calls: make(map[int]string), echoes: make(map[uint32]netip.AddrPort), realTime: true}}
	who := attackers[1+seed%3]
	known := w.protect(who)
	var sockets [3]*net.UDPConn // of the client, and of two strangers
	var addrs [3]netip.AddrPort
	for i := range sockets {
		var err error
		if sockets[i], err = net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = sockets[i].Close() })
		addrs[i] = addrOf(sockets[i].LocalAddr())
	}
	w.addrs[0] = addrs[0]
	w.attacker = &attacker{
		t: t, wire: known, ability: who, random: rand.New(rand.NewPCG(seed, 24)),
		ends: w.addrs[:2], own: addrs[1:], silent: true,
		inject: func(p recorded) {
			from := sockets[1]
			for i, addr := range addrs {
				if addr == p.from {
					from = sockets[i]
				}
			}
			_, _ = from.WriteToUDPAddrPort(p.data, p.to)
		},
	}
	w.attacker.begin()
	server, client := w.config, w.config
	w.hook(1, &server)
	w.hook(0, &client)
	for _, c := range []*kcp.Config{&server, &client} {
		if c.Limits.MaxStreams, c.Linger = 4, time.Second/2; !w.intact {
			c.DialTimeout = 2 * time.Second
		}
	}
	w.server = &server
	var err error
	if w.ends[0], err = kcp.NewEndpoint(tapped{sockets[0], w.attacker.tap, func() bool { return w.draw(20) == 0 }}, &client); err != nil {
		t.Fatal(err)
	}
	w.all = append(w.all, w.ends[0])
	return w
}

// client uses a session, which may be disturbed unless something is promised.
func (w *takeovers) client() {
	if w.intact {
		w.honest(0, 1, 5000)
	} else if c, _ := w.dialTo(0, w.addrs[1], kcp.DialOptions{}); c != nil {
		w.disturbed(0, c)
	}
}

// disturbed makes some calls of a session, none of which waits for long.
func (w *takeovers) disturbed(i int, c *kcp.Conn) {
	_ = c.SetDeadline(time.Now().Add(time.Second / 2))
	w.call(i, 0, "Write", func() { _, _ = c.Write([]byte{1}) })
	w.call(i, 0, "Read", func() { _, _ = io.Copy(io.Discard, c) })
	w.call(i, 0, "Abort", func() { _ = c.Abort(0, "") })
}

// accept serves the sessions of a process.
func (w *takeovers) accept(l *kcp.Listener) {
	w.all = append(w.all, l.Endpoint())
	w.apps.Go(func() {
		for {
			c, err := l.AcceptKCP(context.Background())
			if err != nil {
				return
			}
			w.apps.Go(func() {
				w.mu.Lock()
				echoes := w.echoes[c.Conv()] == addrOf(c.RemoteAddr())
				w.mu.Unlock()
				if echoes {
					w.echo(1, c)
				} else {
					w.disturbed(1, c)
				}
			})
		}
	})
}

// handOver hands l over, or tries to and fails. It returns the listener of the process
// that has the socket afterwards.
func (w *takeovers) handOver(l *kcp.Listener) *kcp.Listener {
	conns := testenv.UnixPair(w.t)
	gives, takes := context.WithCancel(context.Background())
	defer takes()
	left := make(chan error, 1)
	w.drained.Go(func() {
		var err error
		w.call(1, 0, "HandOver", func() { err = l.HandOver(context.Background(), conns[0]) })
		left <- err
		_ = conns[0].Close()
	})
	if w.draw(3) == 0 {
		time.AfterFunc(time.Duration(w.draw(3000))*time.Microsecond, takes)
	}
	var next *kcp.Listener
	var err error
	w.call(1, 0, "TakeOver", func() { next, err = kcp.TakeOver(gives, conns[1], w.server) })
	_ = conns[1].Close()
	if err != nil {
		var late net.Error // the machine is busy
		if !errors.Is(err, context.Canceled) && !(errors.As(err, &late) && late.Timeout()) {
			w.t.Errorf("TakeOver: %v", err)
		}
		if err := <-left; err == nil {
			w.t.Error("HandOver does not say that nobody has taken over")
		}
		return l
	}
	w.accept(next)
	return next
}
