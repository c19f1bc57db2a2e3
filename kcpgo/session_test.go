package kcp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/netsim"
)

// What is tested here is better than in kcp-go. What is the same is in contract.

const (
	serverAddr = "10.0.0.1:4000"
	clientAddr = "10.0.0.2:5000"
)

// world is a simulated network in virtual time.
type world struct {
	*testing.T
	network *netsim.Network
}

// inWorld runs f on a network whose links are as given.
func inWorld(t *testing.T, link netsim.LinkConfig, f func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Hour) }) // the last: what goes on in the background ends
		f(&world{t, netsim.NewNetwork(1, link)})
	})
}

func (w *world) socket(addr string) net.PacketConn {
	w.Helper()
	pc, err := w.network.Listen(addr)
	must(w, err)
	return pc
}

func (w *world) listen(addr string) *Listener {
	w.Helper()
	l, err := serve(nil, 0, 0, true, w.socket(addr))
	must(w, err)
	w.Cleanup(func() { l.Close() })
	return l
}

func (w *world) dial(addr string) *UDPSession {
	w.Helper()
	to := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(serverAddr))
	s, err := NewConn4(randomConv(), to, nil, 0, 0, true, w.socket(addr))
	must(w, err)
	w.Cleanup(func() { s.Close() })
	return s
}

// join returns both ends of a session over which "hello" has gone.
func (w *world) join() (client, server *UDPSession, l *Listener) {
	w.Helper()
	l = w.listen(serverAddr)
	client = w.dial(clientAddr)
	if _, err := client.Write([]byte("hello")); err != nil {
		w.Fatal(err)
	}
	server, err := l.AcceptKCP()
	must(w, err)
	w.Cleanup(func() { server.Close() })
	w.want(server, "hello")
	return client, server, l
}

func (w *world) want(s *UDPSession, text string) {
	w.Helper()
	b := make([]byte, 1<<16)
	if n, err := s.Read(b); string(b[:n]) != text || err != nil {
		w.Fatalf("%q, %v, want %q", b[:n], err, text)
	}
}

var slow = netsim.LinkConfig{Delay: 50 * time.Millisecond}

// TestCloseDelivers writes more than a window, and closes: all of it arrives,
// and then the end, although the path loses packets.
func TestCloseDelivers(t *testing.T) {
	link := netsim.LinkConfig{Delay: 20 * time.Millisecond, Loss: 0.05}
	for _, closer := range []string{"client", "server"} {
		inWorld(t, link, func(w *world) {
			client, server, _ := w.join()
			from, to := client, server
			if closer == "server" {
				from, to = server, client
			}
			sent := bytes.Repeat([]byte("0123456789"), 50000)
			if n, err := from.Write(sent); n != len(sent) || err != nil {
				t.Fatal(n, err)
			}
			start := time.Now()
			must(t, from.Close())
			wrong(t, time.Since(start) != 0, "Close waits")
			got, err := io.ReadAll(to)
			if err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%s closes: %d bytes of %d, %v", closer, len(got), len(sent), err)
			}
		})
	}
}

// TestDeadlinesReachWaitingCalls sets deadlines while Read, Write and Accept
// wait.
func TestDeadlinesReachWaitingCalls(t *testing.T) {
	inWorld(t, slow, func(w *world) {
		_, server, l := w.join()
		w.network.Cut("10.0.0.2", "10.0.0.1")
		server.SetWindowSize(1, 128)
		if _, err := server.Write([]byte("unread")); err != nil {
			t.Fatal(err)
		}
		errs := make(chan error, 3)
		for _, call := range []func() error{
			func() error { _, err := server.Read(make([]byte, 1)); return err },
			func() error { _, err := server.Write([]byte("x")); return err },
			func() error { _, err := l.Accept(); return err },
		} {
			go func() { errs <- call() }()
		}
		time.Sleep(time.Second)
		start := time.Now()
		server.SetDeadline(start.Add(2 * time.Second))
		l.SetDeadline(start.Add(2 * time.Second))
		for range 3 {
			err := <-errs
			var e net.Error
			wrong(t, !errors.As(err, &e) || !e.Timeout() || !errors.Is(err, os.ErrDeadlineExceeded), err)
		}
		if d := time.Since(start); d != 2*time.Second {
			t.Error("after", d)
		}
	})
}

// TestIdleIsSilent has no packet pass in an hour, and no goroutine for each of
// the accepted sessions.
func TestIdleIsSilent(t *testing.T) {
	inWorld(t, slow, func(w *world) {
		l := w.listen(serverAddr)
		const sessions = 50
		var before int
		for i := range sessions {
			client := w.dial(net.JoinHostPort(net.IPv4(10, 0, 1, byte(i)).String(), "5000"))
			if _, err := client.Write([]byte("hello")); err != nil {
				t.Fatal(err)
			}
			server, err := l.AcceptKCP()
			must(t, err)
			w.want(server, "hello")
			if i == 0 {
				synctest.Wait()
				before = runtime.NumGoroutine()
			}
		}
		time.Sleep(10 * time.Second)
		synctest.Wait() // the goroutines of timers end
		if n := runtime.NumGoroutine() - before; n > sessions {
			t.Errorf("%d goroutines for %d sockets that have dialled", n, sessions)
		}
		stats := DefaultSnmp.Copy()
		time.Sleep(time.Hour)
		if now := DefaultSnmp.Copy(); now.OutPkts != stats.OutPkts {
			t.Error("packets in an hour:", now.OutPkts-stats.OutPkts)
		}
		l.Close()
	})
}

// TestVanishedPeer fails after ten minutes with data that waits, and never
// without.
func TestVanishedPeer(t *testing.T) {
	inWorld(t, slow, func(w *world) {
		client, server, _ := w.join()
		time.Sleep(time.Second)
		w.network.Cut("10.0.0.2", "10.0.0.1")
		time.Sleep(time.Hour)
		if _, err := server.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := server.Read(make([]byte, 1)); err == nil || errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		if d := time.Since(start); d < peerTimeout || d > peerTimeout+10*time.Second {
			t.Error("after", d)
		}
		client.SetReadDeadline(time.Now().Add(time.Hour))
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the other end, which has written nothing:", err)
		}
	})
}

// TestNothingIsKept drops what a session holds in the maps of its listener and
// of the meters.
func TestNothingIsKept(t *testing.T) {
	inWorld(t, slow, func(w *world) {
		client, server, l := w.join()
		client.Close()
		server.Close()
		time.Sleep(time.Minute)
		l.mu.Lock()
		if n := len(l.latest) + len(l.unshown); n != 0 {
			t.Error("sessions of the listener:", n)
		}
		l.mu.Unlock()
		meters.mu.Lock()
		_, kept := meters.ports[client.port]
		meters.mu.Unlock()
		wrong(t, kept, "the meter of the client is kept")
	})
}

// TestServeConnLetsGo leaves the socket of the program when the listener and its
// last session are closed, in either order.
func TestServeConnLetsGo(t *testing.T) {
	for _, first := range []string{"listener", "session"} {
		inWorld(t, slow, func(w *world) {
			pc := w.socket(serverAddr)
			l, err := ServeConn(nil, 0, 0, pc)
			must(t, err)
			client := w.dial(clientAddr)
			if _, err := client.Write([]byte("hello")); err != nil {
				t.Fatal(err)
			}
			server, err := l.AcceptKCP()
			must(t, err)
			if first == "listener" {
				l.Close()
				w.want(server, "hello")
				server.Close()
			} else {
				w.want(server, "hello")
				server.Close()
				l.Close()
			}
			client.Close()
			time.Sleep(time.Minute)
			other := w.socket("10.0.0.9:9")
			if _, err := other.WriteTo([]byte("mine"), pc.LocalAddr()); err != nil {
				t.Fatal(err)
			}
			b := make([]byte, 10)
			if n, _, err := pc.ReadFrom(b); string(b[:n]) != "mine" || err != nil {
				t.Error(first, "first:", string(b[:n]), err)
			}
			pc.Close()
		})
	}
}

// TestManyClosedSockets does not hold the socket of a closed session if too many
// are held already.
func TestManyClosedSockets(t *testing.T) {
	waitingPorts.Add(mostWaitingPorts)
	defer waitingPorts.Add(-mostWaitingPorts)
	inWorld(t, slow, func(w *world) {
		client, _, _ := w.join()
		if _, err := client.Write([]byte("lost")); err != nil {
			t.Fatal(err)
		}
		client.Close()
		pc, err := w.network.Listen(clientAddr)
		if err != nil {
			t.Fatal("the socket is held:", err)
		}
		pc.Close()
	})
	if n := waitingPorts.Load(); n != mostWaitingPorts {
		t.Error("counted:", n)
	}
}

// TestRestartedServer writes to a server that has lost its sessions.
func TestRestartedServer(t *testing.T) {
	inWorld(t, slow, func(w *world) {
		client, _, l := w.join()
		if _, err := client.Write([]byte("more")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		w.network.Cut("10.0.0.1", "10.0.0.2") // it dies without a word
		l.Close()
		w.network.Heal("10.0.0.1", "10.0.0.2")
		w.listen(serverAddr)
		if _, err := client.Write([]byte("still there?")); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err := client.Read(make([]byte, 1))
		wrong(t, !errors.Is(err, syscall.ECONNRESET), err)
		if d := time.Since(start); d > 5*time.Second {
			t.Error("after", d)
		}
	})
}

// must fails the test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wrong reports an error if something is so, with what is known of it.
func wrong(t testing.TB, so bool, what ...any) {
	t.Helper()
	if so {
		t.Error(what...)
	}
}
