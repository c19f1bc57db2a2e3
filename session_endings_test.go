package kcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/stretchr/testify/require"
)

// Endings in which one side knows less of the other than it believes.

// mortal is the configuration of sessions whose peers are soon found out to be
// gone, and allAtAnEnd the time after which nothing of such a session may be left.
func mortal() *Config {
	return &Config{KeepAlive: 2 * time.Second, PeerTimeout: 3 * time.Second, Linger: time.Second}
}

func allAtAnEnd(c *Config) time.Duration {
	return c.KeepAlive*3/2 + c.PeerTimeout + c.Linger + time.Second // and time on the way
}

// Signals with forged tokens end no session of a peer that knows no signals:
// what answers them is believed by nobody who has not asked.
func TestForgedTokensEndNothing(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		cfg := mortal()
		l := w.listen(cfg)
		w.legacyPeer("10.0.0.2:5000", 77, []byte("hello"))
		b, err := l.AcceptKCP(context.Background())
		require.NoError(t, err)
		receive(t, b, []byte("hello"))
		for _, s := range []signal{{sigConfirm, 1, 2}, {sigFin, 1, 2}, {sigClose, 1, 2}, {sigPing, 1, 2}} {
			packet := make([]byte, headerSize)
			s.encode(header{conv: 77, wnd: 128}, packet)
			w.net.Inject(netip.MustParseAddrPort("10.0.0.2:5000"), netip.MustParseAddrPort(serverAddr), packet)
		}
		time.Sleep(time.Minute)
		require.Equal(t, 1, l.Stats().Sessions)
		_, err = b.Write([]byte("still there"))
		require.NoError(t, err)
	})
}

// Close with nothing unacknowledged is no failure, whatever became of the peer,
// and takes no time where the system says that nobody is there.
func TestCloseOfADeadPeerWithNothingUnacknowledged(t *testing.T) {
	for _, refused := range []bool{true, false} {
		for _, wrote := range []bool{true, false} {
			inWorld(t, 6, clean, func(t *testing.T, w *world) {
				l := w.listen(nil)
				e, pc := w.endpoint("10.0.0.2:5000", nil)
				e.socket.connected = refused
				a := w.dial(e)
				if wrote {
					_, err := a.Write(content(1, 5000))
					require.NoError(t, err)
				}
				time.Sleep(time.Second)
				w.net.Cut("10.0.0.1", "10.0.0.2")
				if refused {
					pc.FailWrites(syscall.ECONNREFUSED, 1)
				}
				start := time.Now()
				require.NoError(t, a.Close())
				if refused {
					require.Zero(t, time.Since(start))
				} else {
					require.Equal(t, defaultLinger, time.Since(start))
				}
				time.Sleep(defaultPeerTimeout)
				require.Zero(t, e.Stats().Sessions)
				_ = l
			})
		}
	}
}

// What Close could not tell the peer in its time is told in the background, so
// the peer reads io.EOF and no error.
func TestCloseTellsThePeerLater(t *testing.T) {
	inWorld(t, 6, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		time.Sleep(time.Second)
		w.net.Cut("10.0.0.1", "10.0.0.2")
		require.NoError(t, a.Close())
		w.net.Heal("10.0.0.1", "10.0.0.2")
		_, err := b.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		require.NoError(t, b.Close())
		time.Sleep(time.Minute)
		require.Zero(t, a.ep.Stats().Sessions)
		require.Zero(t, b.ep.Stats().Sessions)
	})
}

// Close says that data is lost if it is.
func TestCloseOfADeadPeerWithDataUnacknowledged(t *testing.T) {
	for _, refused := range []bool{true, false} {
		inWorld(t, 6, clean, func(t *testing.T, w *world) {
			w.listen(nil)
			e, pc := w.endpoint("10.0.0.2:5000", nil)
			e.socket.connected = refused
			a := w.dial(e)
			time.Sleep(time.Second)
			w.net.Cut("10.0.0.1", "10.0.0.2")
			_, err := a.Write(content(1, 5000))
			require.NoError(t, err)
			if refused {
				pc.FailWrites(syscall.ECONNREFUSED, 1)
			}
			require.ErrorIs(t, a.Close(), ErrNotDelivered)
		})
	}
}

// The peer closes without all that was written, and is lost before its own data is there.
// Close still says what is lost.
func TestCloseOfALostPeerThatHasClosed(t *testing.T) {
	inWorld(t, 6, clean, func(t *testing.T, w *world) {
		a, b, l := w.pair(nil, nil)
		from, to := a.LocalAddr().(*net.UDPAddr).AddrPort(), l.Addr().(*net.UDPAddr).AddrPort()
		w.net.Cut("10.0.0.1", "10.0.0.2")
		_, err := b.Write(content(1, 5000))
		require.NoError(t, err)
		b.mu.Lock()
		closed := signal{sigClose, uint32(b.kcp.position().received) + 1, b.hs.token}
		b.mu.Unlock()
		w.net.Inject(from, to, packetOf(a.Conv(), bytesOf(closed)))
		<-b.Done()
		var lost *PeerLostError
		require.ErrorAs(t, b.Err(), &lost)
		require.ErrorIs(t, b.Close(), ErrNotDelivered)
	})
}

// CloseWrite says of a peer whether it can be told, however early it is asked; a
// peer that cannot be is written to as before.
func TestCloseWriteOfAPeerNotYetKnown(t *testing.T) {
	for _, dialTimeout := range []time.Duration{0, -1} {
		for _, pause := range []time.Duration{0, 50 * time.Millisecond, time.Second} {
			inWorld(t, 9, clean, func(t *testing.T, w *world) {
				w.legacyPeer(serverAddr, 0, nil)
				e, _ := w.endpoint("10.0.0.2:5000", &Config{DialTimeout: dialTimeout})
				a := w.dial(e)
				time.Sleep(pause)
				require.ErrorIs(t, a.CloseWrite(), ErrLegacyPeer)
				require.LessOrEqual(t, w.net.Elapsed(), max(pause, 3*roundTrip)+opening.FirstHello)
				_, err := a.Write([]byte("still"))
				require.NoError(t, err)
				require.NoError(t, a.Close())
			})
			inWorld(t, 9, clean, func(t *testing.T, w *world) {
				l := w.listen(nil)
				e, _ := w.endpoint("10.0.0.2:5000", &Config{DialTimeout: dialTimeout})
				a := w.dial(e)
				time.Sleep(pause)
				require.NoError(t, a.CloseWrite())
				b, err := l.AcceptKCP(context.Background())
				require.NoError(t, err)
				_, err = b.Read(make([]byte, 1))
				require.Equal(t, io.EOF, err)
			})
		}
	}
	inWorld(t, 9, clean, func(t *testing.T, w *world) { // accepted
		l := w.listen(nil)
		w.legacyPeer("10.0.0.2:5000", 77, []byte("hello"))
		b, err := l.AcceptKCP(context.Background())
		require.NoError(t, err)
		require.ErrorIs(t, b.CloseWrite(), ErrLegacyPeer)
		require.LessOrEqual(t, w.net.Elapsed(), helloAfterData+roundTrip)
		receive(t, b, []byte("hello"))
	})
	inWorld(t, 9, clean, func(t *testing.T, w *world) { // nobody there
		e, _ := w.endpoint("10.0.0.2:5000", &Config{DialTimeout: -1})
		a := w.dial(e)
		require.NoError(t, a.SetWriteDeadline(time.Now().Add(time.Second)))
		requireTimeout(t, a.CloseWrite())
		require.Equal(t, time.Second, w.net.Elapsed())
	})
}

// A short session with a peer that knows no signals does not wait for what it
// will not say.
func TestCloseOfAShortLegacySession(t *testing.T) {
	inWorld(t, 9, clean, func(t *testing.T, w *world) {
		w.legacyPeer(serverAddr, 0, nil)
		e, _ := w.endpoint("10.0.0.2:5000", nil)
		a := w.dial(e)
		_, err := a.Write([]byte("x"))
		require.NoError(t, err)
		require.NoError(t, a.Close())
		require.LessOrEqual(t, w.net.Elapsed(), 2*roundTrip)
	})
}

// A session over which nothing new goes is idle, whatever its peer sends.
func TestIdleMeansNoNewData(t *testing.T) {
	empty := func(sn uint32) []byte { return push(sn, 0, "") }
	for name, next := range map[string]func(i uint32) []byte{
		"old":              func(uint32) []byte { return empty(0) },
		"empty":            func(i uint32) []byte { return empty(1 + i) },
		"beyond":           func(uint32) []byte { return push(1<<30, 0, "x") },
		"early":            func(i uint32) []byte { return push(100+i, 0, "x") },
		"empty datagram":   func(uint32) []byte { return []byte{0, 0, 0, 0, byte(fec.TypeOOB), fec.TypeOOB >> 8, 6, 0, 7, 0, 0, 0} },
		"acknowledgements": func(i uint32) []byte { return ack(i, 0, 0) },
	} {
		inWorld(t, 15, clean, func(t *testing.T, w *world) {
			l := w.listen(&Config{IdleTimeout: time.Minute})
			from, to := netip.MustParseAddrPort("10.0.0.2:5000"), netip.MustParseAddrPort(serverAddr)
			w.net.Inject(from, to, push(0, 0, "x"))
			b, err := l.AcceptKCP(context.Background())
			require.NoError(t, err)
			receive(t, b, []byte("x"))
			for i := uint32(0); i < 20; i++ {
				w.net.At(time.Duration(10+20*i)*time.Second, func() { w.net.Inject(from, to, next(i)) })
			}
			var lost *PeerLostError
			_, err = b.Read(make([]byte, 1))
			require.ErrorAs(t, err, &lost, name)
			require.True(t, lost.Idle, name)
			require.InDelta(t, time.Minute, w.net.Elapsed(), float64(time.Second), name)
		})
	}
	inWorld(t, 15, clean, func(t *testing.T, w *world) { // what is new does count, in each direction
		cfg := &Config{IdleTimeout: time.Minute}
		a, b, _ := w.pair(cfg, cfg)
		for _, send := range []func(){
			func() { _, _ = a.Write([]byte("x")) }, func() { _, _ = b.Write([]byte("x")) },
			func() { _ = a.SendDatagram([]byte("x")) }, func() { _ = b.SendDatagram([]byte("x")) },
		} {
			time.Sleep(50 * time.Second)
			send()
		}
		time.Sleep(50 * time.Second)
		for _, c := range []*Conn{a, b} {
			require.Equal(t, 1, c.ep.Stats().Sessions)
		}
	})
}

// The end whose IdleTimeout has passed says that the peer is idle, and the other that
// the session was reset. If both have the same one, no end sees anything else.
func TestIdleTimeoutAtTheOtherEnd(t *testing.T) {
	idle := &Config{IdleTimeout: time.Minute}
	for _, peers := range []*Config{nil, idle} {
		inWorld(t, 15, clean, func(t *testing.T, w *world) {
			a, b, _ := w.pair(peers, idle)
			bothWays(t, a, b, []byte("x"), []byte("x"))
			errs := make(chan error, 2)
			for _, c := range []*Conn{a, b} {
				go func() {
					_, err := c.Read(make([]byte, 1))
					errs <- err
				}()
			}
			time.Sleep(2 * time.Minute)
			var lost *PeerLostError
			both := []error{<-errs, <-errs}
			require.True(t, errors.As(both[0], &lost) || errors.As(both[1], &lost), both)
			require.True(t, lost.Idle)
			for _, err := range both {
				require.True(t, errors.As(err, &lost) || errors.Is(err, ErrReset), err)
			}
			if peers == nil {
				require.True(t, errors.Is(both[0], ErrReset) || errors.Is(both[1], ErrReset), both)
			}
		})
	}
}

// A peer that takes nothing of what waits for it has its time, however often it
// says that it is there; one that reads again before has more.
func TestStalledPeerHasItsTime(t *testing.T) {
	t.Parallel()
	long(t)
	inWorld(t, 15, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, &Config{ReceiveWindow: 128})
		wrote := make(chan error, 1)
		go func() {
			_, err := a.Write(make([]byte, 16<<20))
			wrote <- err
		}()
		time.Sleep(20 * time.Minute)
		_, err := b.Read(make([]byte, 1<<20))
		require.NoError(t, err)
		for range 100 {
			_, err := b.Read(make([]byte, 1<<20))
			require.NoError(t, err)
		}
		start := time.Now()
		var lost *PeerLostError
		require.ErrorAs(t, <-wrote, &lost)
		require.GreaterOrEqual(t, lost.Stalled, defaultStallTimeout)
		require.InDelta(t, defaultStallTimeout, time.Since(start), float64(10*time.Second))
	})
}

// A FIN below what has arrived already ends the stream all the same, after what
// has been said before.
func TestFinBelowWhatHasArrived(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, l := w.pair(nil, nil)
		from, to := a.LocalAddr().(*net.UDPAddr).AddrPort(), l.Addr().(*net.UDPAddr).AddrPort()
		w.net.Inject(from, to, packetOf(a.Conv(), push(3, 0, "late"), push(2, 0, "y")))
		b.mu.Lock()
		fin := signal{sigFin, 2, b.hs.token}
		b.mu.Unlock()
		w.net.Inject(from, to, packetOf(a.Conv(), bytesOf(fin)))
		w.net.Inject(from, to, packetOf(a.Conv(), push(1, 0, "x")))
		require.NoError(t, b.SetReadDeadline(time.Now().Add(time.Minute)))
		all, err := io.ReadAll(b)
		require.NoError(t, err)
		require.Equal(t, "xylate", string(all))
	})
}

// bring brings both ends of a session into a state; each call returns.
var bring = map[string]func(a, b *Conn){
	"open":                   func(a, b *Conn) {},
	"half-closed by dialler": func(a, b *Conn) { _ = a.CloseWrite() },
	"half-closed by other":   func(a, b *Conn) { _ = b.CloseWrite() },
	"over":                   func(a, b *Conn) { _, _ = a.CloseWrite(), b.CloseWrite() },
	"data under way":         func(a, b *Conn) { _, _ = a.Write(content(1, 50000)); _, _ = b.Write(content(1, 50000)) },
	"dialler lingers":        func(a, b *Conn) { _, _ = a.Write(content(1, 50000)); go a.Close() },
	"other lingers":          func(a, b *Conn) { _, _ = b.Write(content(1, 50000)); go b.Close() },
	"dialler closes":         func(a, b *Conn) { go a.Close() },
	"aborted":                func(a, b *Conn) { _ = a.Abort() },
}

// In each state the peer vanishes, is restarted, or answers late: all calls
// return, nothing is left of the session in its time, and Close says no more and
// no less than is so.
func TestEveryStateEnds(t *testing.T) {
	t.Parallel()
	for state, bring := range bring {
		for _, event := range []string{"vanishes", "restarts", "late", "nothing"} {
			for _, pause := range []time.Duration{0, 5 * time.Millisecond, 15 * time.Millisecond, time.Second} {
				if repeated() && pause != 0 && pause != time.Second {
					continue
				}
				for _, early := range []bool{true, false} {
					name := fmt.Sprintf("%s, %s, %v, %v", state, event, pause, early)
					inWorld(t, 5, clean, func(t *testing.T, w *world) { w.walk(name, bring, event, pause, early) })
				}
			}
		}
	}
}

// walk lives a session. early: it is brought into its state without waiting for
// the handshake to end.
func (w *world) walk(name string, bring func(a, b *Conn), event string, pause time.Duration, early bool) {
	cfg := mortal()
	pc, err := w.net.Listen(serverAddr)
	require.NoError(w.t, err)
	server, err := NewEndpoint(pc, cfg)
	require.NoError(w.t, err)
	l, err := server.Listen()
	require.NoError(w.t, err)
	client, _ := w.endpoint("10.0.0.2:5000", cfg)
	a := w.dial(client)
	b, err := l.AcceptKCP(context.Background())
	require.NoError(w.t, err)
	if !early {
		time.Sleep(time.Second)
	}
	bring(a, b)
	time.Sleep(pause)
	ends := []*Endpoint{client, server}
	switch event {
	case "vanishes":
		w.net.Cut("10.0.0.1", "10.0.0.2")
	case "restarts":
		require.NoError(w.t, pc.Close())
		again, _ := w.endpoint(serverAddr, cfg)
		_, err := again.Listen()
		require.NoError(w.t, err)
		ends = append(ends, again)
	case "late":
		w.net.Cut("10.0.0.1", "10.0.0.2")
		w.net.At(w.net.Elapsed()+700*time.Millisecond, func() { w.net.Heal("10.0.0.1", "10.0.0.2") })
	}
	type result struct {
		got                int
		readErr, closeErr  error
		unacknowledgedLeft bool
	}
	results := make(chan result, 2)
	for _, c := range []*Conn{a, b} {
		go func() {
			var r result
			_ = c.SetReadDeadline(time.Now().Add(allAtAnEnd(cfg)))
			n, err := io.Copy(io.Discard, c)
			r.got, r.readErr, r.closeErr = int(n), err, c.Close()
			c.mu.Lock()
			defer c.mu.Unlock()
			r.unacknowledgedLeft = c.kcp.WaitSend() > 0 || c.closing.Undelivered()
			results <- r
		}()
	}
	for range 2 {
		r := <-results
		if errors.Is(r.closeErr, ErrNotDelivered) {
			require.True(w.t, r.unacknowledgedLeft, "%s: ErrNotDelivered", name)
		}
		if event == "nothing" || event == "late" {
			require.False(w.t, errors.Is(r.closeErr, ErrReset), name)
		}
	}
	time.Sleep(allAtAnEnd(cfg))
	for i, e := range ends {
		require.Zero(w.t, e.Stats().Sessions, "%s: endpoint %d", name, i)
	}
	_ = server.Close()
	_ = pc.Close()
}

// A socket for one session stays as long as a peer of default settings goes on to
// ask.
func TestDialledSocketIsHeldForThePeer(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		pc, err := w.net.Listen("10.0.0.2:5000")
		require.NoError(t, err)
		e := newEndpoint(nil, true, pc)
		e.socket.disposable = true
		l := w.listen(nil)
		a := w.dial(e)
		b, err := l.AcceptKCP(context.Background())
		require.NoError(t, err)
		_, err = b.Write([]byte("bye"))
		require.NoError(t, err)
		until := time.Now().Add(3 * time.Second)
		w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool {
			return from.String() == serverAddr || time.Now().After(until)
		})
		closed := make(chan error, 1)
		go func() { closed <- b.Close() }()
		receive(t, a, []byte("bye"))
		_, err = a.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		require.NoError(t, a.Close())
		require.NoError(t, <-closed)
		require.True(t, time.Now().After(until))
		time.Sleep(closing.DialledHold)
		e.mu.Lock()
		require.True(t, e.closed)
		e.mu.Unlock()

		other, _ := w.endpoint("10.0.0.2:5001", nil)
		other.socket.disposable = true
		a = w.dial(other)
		b, err = l.AcceptKCP(context.Background())
		require.NoError(t, err)
		require.NoError(t, b.CloseWrite())
		_, err = a.Read(make([]byte, 1))
		require.Equal(t, io.EOF, err)
		hold := func() time.Duration {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.holdSocket()
		}
		require.Equal(t, closing.DialledHold, hold())
	})
}
