package e2e

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/crypt"
	"github.com/stretchr/testify/require"
)

// curious is code of a caller's that asks the endpoint about itself whenever it
// is called.
type curious struct {
	crypt.Cipher
	ask   func()
	calls atomic.Int32
}

func (c *curious) called() { c.calls.Add(1); c.ask() }

func (c *curious) Seal(p []byte) error                       { c.called(); return c.Cipher.Seal(p) }
func (c *curious) Open(p []byte) ([]byte, error)             { c.called(); return c.Cipher.Open(p) }
func (c *curious) Enabled(context.Context, slog.Level) bool  { return true }
func (c *curious) Handle(context.Context, slog.Record) error { c.called(); return nil }
func (c *curious) WithAttrs([]slog.Attr) slog.Handler        { return c }
func (c *curious) WithGroup(string) slog.Handler             { return c }

// What a Config brings along may use the endpoint: none of it is called with the
// endpoint's lock held.
func TestCallbacksMayUseTheEndpoint(t *testing.T) {
	plain, err := crypt.AESGCM(make([]byte, 16))
	require.NoError(t, err)
	for _, validation := range []kcp.AddressValidation{kcp.ValidateUnderPressure, kcp.ValidateAlways} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			var endpoint atomic.Pointer[kcp.Endpoint]
			ask := func() {
				if e := endpoint.Load(); e != nil {
					_ = e.Stats()
				}
			}
			cipher, logger := &curious{Cipher: plain, ask: ask}, &curious{ask: ask}
			controls := 0
			l := w.listen(&kcp.Config{
				Cipher: cipher, Logger: slog.New(logger), AddressValidation: validation,
				CongestionControl: func() congestion.Control { controls++; ask(); return congestion.NewBBR() },
			})
			endpoint.Store(l.Endpoint())
			e, _ := w.endpoint("10.0.0.2:0", &kcp.Config{Cipher: plain})
			a := w.dial(e)
			b, err := l.AcceptKCP(context.Background())
			require.NoError(t, err)
			send(t, a, content(1, 50000))
			receive(t, b, content(1, 50000))
			require.NoError(t, a.Close())
			c, err := l.Endpoint().Dial(context.Background(), e.LocalAddr())
			require.ErrorIs(t, err, kcp.ErrRefused)
			require.Nil(t, c)
			require.Positive(t, cipher.calls.Load())
			require.Positive(t, logger.calls.Load())
			require.Equal(t, 2, controls)
		})
	}
}

// Cookies that nobody has asked for do not have more sent than has come.
func TestForgedCookiesWhileDialling(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		e, pc := w.endpoint("10.0.0.2:5000", &kcp.Config{DialTimeout: 5 * time.Second})
		_, silent := w.endpoint(serverAddr, nil)
		var conv atomic.Uint32
		sent, came := 0, 0
		w.net.SetFilter(func(from, _ netip.AddrPort, p []byte) bool {
			if from == pc.AddrPort() {
				conv.Store(decodeHeader(p).conv)
				sent += len(p)
			}
			return from != silent.AddrPort()
		})
		go func() {
			for i := range uint32(1000) {
				time.Sleep(time.Millisecond)
				p := packetOf(conv.Load(), bytesOf(signal{sigCookie, i, i}))
				came += len(p)
				w.net.Inject(silent.AddrPort(), pc.AddrPort(), p)
			}
		}()
		_, err := e.Dial(context.Background(), silent.LocalAddr())
		require.ErrorAs(t, err, new(*kcp.NoAnswerError))
		require.Less(t, sent, came/5)
	})
}

// A flood of requests of sessions that do not exist takes nothing of the share
// of cookies, however long it goes on.
func TestRequestsLeaveCookiesAlone(t *testing.T) {
	long(t)
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		l := w.listen(&kcp.Config{AddressValidation: kcp.ValidateAlways})
		to := l.Addr().(*net.UDPAddr).AddrPort()
		for i := range uint32(20000) {
			w.net.Inject(floodAddr(int(i%1000)), to, packetOf(i, bytesOf(signal{sigPing, i, i})))
		}
		synctest.Wait()
		require.Positive(t, l.Stats().DropReplies)
		for i := range 2000 { // half a second of more than are answered
			w.net.At(w.net.Elapsed()+time.Duration(i)*250*time.Microsecond, func() {
				for range 5 {
					w.net.Inject(floodAddr(i), to, packetOf(uint32(i), bytesOf(signal{sigPing, 1, 1})))
				}
			})
		}
		e, _ := w.endpoint("10.0.0.2:0", nil)
		for range 5 {
			start := time.Now()
			w.dial(e)
			require.Equal(t, 2*roundTrip, time.Since(start))
		}
	})
}

// Once Accept may return a session, its fields change only with its lock held.
// The race detector shows it.
func TestAcceptedWhileAdmitted(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		l := w.listen(nil)
		to := l.Addr().(*net.UDPAddr).AddrPort()
		closed := make(chan *kcp.Conn, 100)
		go func() {
			for {
				c, err := l.AcceptKCP(context.Background())
				if err != nil {
					return
				}
				_ = c.SetLinger(-1)
				_ = c.Close()
				closed <- c
			}
		}()
		var seen []uint32
		for i := range uint32(50) {
			w.net.Inject(floodAddr(int(i)), to, packetOf(i+1, push(0, 0, "x")))
			seen = append(seen, (<-closed).Conv())
		}
		slices.Sort(seen)
		require.Len(t, slices.Compact(seen), 50)
	})
}

// Sessions visits each session that an application can have, once, while the
// body of the loop ends them.
func TestSessionsIterator(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		l := w.listen(nil)
		e, _ := w.endpoint("10.0.0.2:0", nil)
		var conns []*kcp.Conn
		for range 5 {
			conns = append(conns, w.dial(e))
		}
		sessions := func() map[*kcp.Conn]bool { // compared as pointers, not by what they point at
			all := make(map[*kcp.Conn]bool)
			for c := range e.Sessions() {
				require.False(t, all[c])
				all[c] = true
			}
			return all
		}
		all := make(map[*kcp.Conn]bool)
		for _, c := range conns {
			all[c] = true
		}
		require.True(t, maps.Equal(all, sessions()))
		time.Sleep(time.Second)
		require.Len(t, slices.Collect(l.Endpoint().Sessions()), 5, "those that wait for Accept, too")
		for c := range e.Sessions() {
			require.NoError(t, c.Close())
			if c == conns[2] {
				break
			}
		}
		require.True(t, maps.Equal(map[*kcp.Conn]bool{conns[3]: true, conns[4]: true}, sessions()))
		again := w.dial(e)
		require.True(t, maps.Equal(map[*kcp.Conn]bool{conns[3]: true, conns[4]: true, again: true}, sessions()))
	})
}

// A session that Accept cannot return is not among those of Sessions.
func TestSessionsWithoutHalfOpen(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		config := &kcp.Config{Cipher: testAEAD(t)}
		l := w.listen(config)
		client, _ := w.endpoint("10.0.0.2:0", &kcp.Config{Cipher: config.Cipher, DialTimeout: -1})
		w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool { return from != acceptorAddr }) // the client never confirms
		w.dial(client)
		time.Sleep(time.Second)
		require.Equal(t, 1, l.Stats().Sessions)
		require.Empty(t, slices.Collect(l.Endpoint().Sessions()))
		w.net.SetFilter(nil)
		time.Sleep(3 * time.Second)
		require.Len(t, slices.Collect(l.Endpoint().Sessions()), 1)
	})
}

// crowd is a server with sessions that have been accepted.
func (w *world) crowd(n int, config *kcp.Config) (l *kcp.Listener, server, clients []*kcp.Conn) {
	w.t.Helper()
	l = w.listen(config)
	e, _ := w.endpoint("10.0.0.2:0", config)
	for range n {
		a := w.dial(e)
		_, err := a.Write([]byte{1})
		require.NoError(w.t, err)
		server, clients = append(server, accepted(w.t, l)), append(clients, a)
	}
	return l, server, clients
}

// Shutdown delivers the last word to everybody, ends each session in order, and
// leaves nothing behind.
func TestShutdown(t *testing.T) {
	for seed := range fewer(8) {
		inWorld(t, seed, lossy, func(t *testing.T, w *world) {
			config := &kcp.Config{KeepAlive: time.Second, PeerTimeout: 10 * time.Second}
			if seed%4 == 3 {
				config.Linger = -1
			}
			l, server, clients := w.crowd(20, config)
			last := content(seed, 20000)
			for i, c := range server {
				_, err := c.Write(last)
				require.NoError(t, err)
				if i%5 == 4 {
					go func() { _ = c.Close() }() // the application closes it meanwhile
				}
			}
			heard := make(chan error, len(clients))
			for _, c := range clients {
				go func() {
					got, err := io.ReadAll(c)
					if string(got) != string(last) {
						err = errors.Join(err, errors.New("content differs"))
					}
					heard <- err
				}()
			}
			accept := make(chan error, 1)
			go func() {
				_, err := l.Accept()
				accept <- err
			}()
			dialled := make(chan error, 1)
			time.AfterFunc(20*time.Millisecond, func() {
				_, err := clients[0].Endpoint().Dial(context.Background(), udpAddr(serverAddr))
				dialled <- err
			})
			require.NoError(t, l.Shutdown(context.Background()))
			for range clients {
				require.NoError(t, <-heard)
			}
			require.ErrorIs(t, <-accept, net.ErrClosed)
			err := <-dialled
			require.Error(t, err)
			s := l.Stats()
			require.Zero(t, s.Sessions)
			require.EqualValues(t, 20, s.Ended.Closed+s.Ended.Aborted, "%+v", s.Ended) // of some, the answer to CLOSE was missing
			_, err = server[0].Write(nil)
			require.ErrorIs(t, err, net.ErrClosed)
			require.ErrorIs(t, l.Shutdown(context.Background()), net.ErrClosed)
			require.ErrorIs(t, l.Endpoint().Close(), net.ErrClosed)
			_, err = l.Endpoint().Listen()
			require.ErrorIs(t, err, net.ErrClosed)
		})
	}
}

// The end of the context aborts what is left, and the error counts it; peers
// that take nothing are counted, too, when Linger has passed.
func TestShutdownIsCutShort(t *testing.T) {
	for _, limit := range []time.Duration{time.Second, time.Minute} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			l, server, clients := w.crowd(5, &kcp.Config{Linger: 3 * time.Second, ReceiveWindow: 128})
			for i, c := range server {
				n := 1000
				if i < 2 {
					n = 1 << 20 // more than a client takes without reading
				}
				_, err := c.Write(make([]byte, n))
				require.NoError(t, err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			start := time.Now()
			err := l.Endpoint().Shutdown(ctx)
			var failed *kcp.ShutdownError
			require.ErrorAs(t, err, &failed)
			if limit == time.Second {
				require.Equal(t, kcp.ShutdownError{Cut: 2, Cause: context.DeadlineExceeded}, *failed)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Equal(t, time.Second, time.Since(start))
			} else {
				require.Equal(t, kcp.ShutdownError{Undelivered: 2}, *failed)
				require.ErrorIs(t, err, kcp.ErrNotDelivered)
				require.Less(t, time.Since(start), 4*time.Second)
			}
			time.Sleep(time.Second)
			for i, c := range clients {
				want := kcp.ErrPeerClosed
				if i < 2 {
					want = kcp.ErrReset
				}
				require.Equal(t, want, c.Err())
			}
		})
	}
}

// An endpoint shut down answers a peer that has not heard of the end.
func TestShutdownHoldsForPeers(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		l, server, clients := w.crowd(1, nil)
		closed := make(chan error, 1)
		go func() { closed <- clients[0].Close() }()
		time.Sleep(5 * time.Millisecond)
		require.NoError(t, server[0].Err())
		require.NoError(t, l.Shutdown(context.Background()))
		require.NoError(t, <-closed)
		require.Error(t, server[0].Err())
	})
}

// One without sessions, and without a listener.
func TestShutdownOfNothing(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		e, _ := w.endpoint("10.0.0.2:0", nil)
		require.NoError(t, e.Shutdown(cancelled()))
		_, err := e.Dial(context.Background(), udpAddr(serverAddr))
		require.ErrorIs(t, err, net.ErrClosed)
	})
}

// A Dial that waits for its answer fails at once, with what a later one returns.
func TestShutdownEndsDials(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		e, _ := w.endpoint("10.0.0.2:0", nil)
		dialled := make(chan error, 1)
		start := time.Now()
		go func() {
			_, err := e.Dial(context.Background(), udpAddr(serverAddr)) // nobody is there
			dialled <- err
		}()
		time.Sleep(time.Second)
		require.NoError(t, e.Shutdown(context.Background()))
		require.ErrorIs(t, <-dialled, net.ErrClosed)
		require.Less(t, time.Since(start), 2*time.Second)
	})
}

// An endpoint with a socket of its own closes itself after its last use. The first Close
// or Shutdown after that is as of an open one.
func TestCloseOfUnusedEndpoint(t *testing.T) {
	for name, end := range map[string]func(e *kcp.Endpoint) error{
		"close":    (*kcp.Endpoint).Close,
		"shutdown": func(e *kcp.Endpoint) error { return e.Shutdown(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			l, err := kcp.Listen("udp", "127.0.0.1:0", nil)
			require.NoError(t, err)
			c, err := kcp.Dial("udp", l.Addr().String(), nil)
			require.NoError(t, err)
			s, err := l.AcceptKCP(t.Context())
			require.NoError(t, err)
			require.NoError(t, l.Close())
			require.NoError(t, s.Abort())
			require.NoError(t, c.Abort())
			require.NoError(t, end(l.Endpoint()))
			require.NoError(t, end(c.Endpoint()))
			require.ErrorIs(t, end(l.Endpoint()), net.ErrClosed)
			require.ErrorIs(t, end(c.Endpoint()), net.ErrClosed)
		})
	}
}
