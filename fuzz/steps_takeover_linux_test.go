package fuzz_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	kcp "github.com/arqnet/kcp"
)

// TestHostileBetweenTakeovers is TestHostileBetweenSteps for the calls by which a process
// hands its socket to another, over the loopback interface. Packets come from a client's
// address, and from others. Where that is promised, sessions are not disturbed: those
// that stay, those of the successor, and those that remain if a takeover is given up.
func TestHostileBetweenTakeovers(t *testing.T) {
	eachHostileSeed(t, 20, 20, betweenTakeovers)
}

// takeovers is a server that is handed over some times, its clients, and an intruder.
type takeovers struct {
	*steps
	config  *kcp.Config // of the server
	sockets map[netip.AddrPort]*net.UDPConn
	drained sync.WaitGroup // calls of HandOver
	all     []*kcp.Listener
}

// tapped is the socket of a client. The intruder sees its packets.
type tapped struct {
	net.PacketConn
	tap func(from, to netip.AddrPort, packet []byte) bool
}

func addrOf(a net.Addr) netip.AddrPort {
	ap := a.(*net.UDPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

func (c tapped) WriteTo(b []byte, to net.Addr) (int, error) {
	c.tap(addrOf(c.LocalAddr()), addrOf(to), b)
	return c.PacketConn.WriteTo(b, to)
}

func (c tapped) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := c.PacketConn.ReadFrom(b)
	if err == nil {
		c.tap(addrOf(from), addrOf(c.LocalAddr()), b[:n])
	}
	return n, from, err
}

func (w *takeovers) socket() *net.UDPConn {
	pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		w.t.Fatal(err)
	}
	w.sockets[addrOf(pc.LocalAddr())] = pc
	return pc
}

// betweenTakeovers is one run.
func betweenTakeovers(t *testing.T, seed uint64) {
	w := &takeovers{sockets: make(map[netip.AddrPort]*net.UDPConn)}
	w.steps = &steps{t: t, seed: seed, random: rand.New(rand.NewPCG(seed, 23)), calls: make(map[int]string), patience: time.Second / 2}
	known := w.protect()
	client, stranger := w.socket(), w.socket()
	w.addrs[0] = addrOf(client.LocalAddr())
	w.intruder = &intruder{
		inject: func(p recorded) {
			from := w.sockets[p.from]
			if from == nil {
				from = stranger
			}
			_, _ = from.WriteToUDPAddrPort(p.data, p.to)
		},
		wire: known, tls: w.kind == "TLS", random: rand.New(rand.NewPCG(seed, 24)),
		ends: w.addrs[:], others: []netip.AddrPort{addrOf(stranger.LocalAddr())}, over: true,
	}
	server, other := w.steps.config, w.steps.config
	w.hook(1, &server)
	w.hook(0, &other)
	for _, c := range []*kcp.Config{&server, &other} {
		if c.MaxStreams, c.Linger = 4, time.Second/2; !w.promised {
			c.DialTimeout = 2 * time.Second
		}
	}
	w.config = &server
	l, err := kcp.Listen("udp", "127.0.0.1:0", w.config)
	if err != nil {
		t.Fatal(err)
	}
	w.intruder.begin(1, addrOf(l.Addr()))
	e, err := kcp.NewEndpoint(tapped{client, w.intruder.tap}, &other)
	if err != nil {
		t.Fatal(err)
	}
	w.ends[0] = e
	w.accept(l)
	var use sync.WaitGroup
	for range 2 + w.draw(3) {
		use.Go(func() { w.honest(0) })
		l = w.handOver(l)
	}
	use.Go(func() { w.honest(0) })
	use.Go(func() { w.dial(0, kcp.DialOptions{}) })
	use.Wait()
	w.intruder.stop()
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	for _, l := range w.all { // sessions that the intruder has opened have no peer
		w.call(1, "Endpoint.Close", func() { _ = l.Endpoint().Close() })
	}
	w.drained.Wait()
	w.apps.Wait()
	for _, pc := range w.sockets {
		_ = pc.Close()
	}
}

// accept serves the sessions of a process.
func (w *takeovers) accept(l *kcp.Listener) {
	w.all = append(w.all, l)
	w.apps.Go(func() {
		for {
			c, err := l.AcceptKCP(context.Background())
			if err != nil {
				return
			}
			w.apps.Go(func() { w.serve(1, c) })
		}
	})
}

// handOver hands l over, or tries to and fails. It returns the listener of the process
// that has the socket afterwards.
func (w *takeovers) handOver(l *kcp.Listener) *kcp.Listener {
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range ends {
		f := os.NewFile(uintptr(fd), "")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			w.t.Fatal(err)
		}
		conns[i] = c.(*net.UnixConn)
	}
	gives, takes := context.WithCancel(context.Background())
	defer takes()
	left := make(chan error, 1)
	w.drained.Go(func() {
		var err error
		w.call(1, "HandOver", func() { err = l.HandOver(context.Background(), conns[0]) })
		left <- err
		_ = conns[0].Close()
	})
	if w.draw(3) == 0 {
		time.AfterFunc(time.Duration(w.draw(3000))*time.Microsecond, takes)
	}
	var next *kcp.Listener
	w.call(1, "TakeOver", func() { next, err = kcp.TakeOver(gives, conns[1], w.config) })
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
