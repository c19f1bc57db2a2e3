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
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/crypt"
	"github.com/stretchr/testify/require"
)

// curious is a cipher that asks the endpoint about itself whenever it is called.
type curious struct {
	crypt.Cipher
	ask   func()
	calls atomic.Int32
}

func (c *curious) called()                       { c.calls.Add(1); c.ask() }
func (c *curious) Seal(p []byte) error           { c.called(); return c.Cipher.Seal(p) }
func (c *curious) Open(p []byte) ([]byte, error) { c.called(); return c.Cipher.Open(p) }

// What a Config brings along may use the endpoint: none of it is called with the
// endpoint's lock held.
func TestCallbacksMayUseTheEndpoint(t *testing.T) {
	for _, validation := range []kcp.AddressValidation{kcp.ValidateUnderPressure, kcp.ValidateAlways} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			var endpoint atomic.Pointer[kcp.Endpoint]
			ask := func() {
				if e := endpoint.Load(); e != nil {
					_ = e.Stats()
				}
			}
			cipher := &curious{Cipher: testAEAD(t), ask: ask}
			records, controls := 0, 0
			l := w.listen(&kcp.Config{
				Cipher: cipher, AddressValidation: validation, Logger: slog.New(onRecord(func(string) { records++; ask() })),
				CongestionControl: func() congestion.Control { controls++; ask(); return congestion.NewBBR() },
			})
			endpoint.Store(l.Endpoint())
			e := w.client(&kcp.Config{Cipher: cipher.Cipher})
			a := w.dial(e)
			w.move(a, accepted(t, l), 1, 50000)
			require.NoError(t, a.Close())
			c, err := l.Endpoint().Dial(context.Background(), e.LocalAddr(), nil)
			require.ErrorIs(t, err, kcp.ErrRefused)
			require.Nil(t, c)
			require.Positive(t, cipher.calls.Load())
			require.Positive(t, records)
			require.Equal(t, 2, controls)
		})
	}
}

// Cookies that nobody has asked for do not have more sent than has come.
func TestForgedCookiesWhileDialling(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		e, pc := w.endpoint("10.0.0.2:5000", &kcp.Config{DialTimeout: 5 * time.Second})
		var conv atomic.Uint32
		sent, came := 0, 0
		w.net.SetFilter(func(from, _ netip.AddrPort, p []byte) bool {
			if from == pc.AddrPort() {
				conv.Store(decodeHeader(p).conv)
				sent += len(p)
			}
			return true
		})
		go func() {
			for i := range uint32(1000) {
				time.Sleep(time.Millisecond)
				p := signal{sigCookie, i, i}.bytes(conv.Load())
				came += len(p)
				w.net.Inject(acceptorAddr, pc.AddrPort(), p)
			}
		}()
		_, err := e.Dial(context.Background(), udpAddr(serverAddr), nil)
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
		flood := func(i int) { w.net.Inject(floodAddr(i%1000), acceptorAddr, signal{sigPing, 1, 1}.bytes(uint32(i))) }
		for i := range 20000 {
			flood(i)
		}
		synctest.Wait()
		require.Positive(t, l.Endpoint().Stats().DropReplies)
		for i := range 2000 { // half a second of more than are answered
			w.after(time.Duration(i)*250*time.Microsecond, func() {
				for range 5 {
					flood(i)
				}
			})
		}
		e := w.client(nil)
		for range 5 {
			start := time.Now()
			w.dial(e)
			require.Equal(t, 2*roundTrip, time.Since(start))
		}
	})
}

// Sessions visits each session that an application can have, once, while the
// body of the loop ends them. One that Accept cannot return is not among them.
func TestSessionsIterator(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		l := w.listen(nil)
		e := w.client(nil)
		var conns []*kcp.Conn
		for range 5 {
			conns = append(conns, w.dial(e))
		}
		requireSessions := func(conns ...*kcp.Conn) { // compared as pointers, not by what they point at
			t.Helper()
			all, want := make(map[*kcp.Conn]int), make(map[*kcp.Conn]int)
			for c := range e.Sessions() {
				all[c]++
			}
			for _, c := range conns {
				want[c] = 1
			}
			require.True(t, maps.Equal(want, all))
		}
		requireSessions(conns...)
		time.Sleep(time.Second)
		require.Len(t, slices.Collect(l.Endpoint().Sessions()), 5, "those that wait for Accept, too")
		for c := range e.Sessions() {
			require.NoError(t, c.Close())
			if c == conns[2] {
				break
			}
		}
		requireSessions(conns[3], conns[4])
		requireSessions(conns[3], conns[4], w.dial(e))
		accepted := func() int { return len(slices.Collect(l.Endpoint().Sessions())) }
		time.Sleep(time.Second)
		before := accepted()
		w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool { return from != acceptorAddr }) // the client never confirms
		w.dial(w.client(&kcp.Config{DialTimeout: -1}))
		time.Sleep(time.Second)
		require.Equal(t, before+1, l.Endpoint().Stats().Sessions)
		require.Equal(t, before, accepted())
		w.hearing()
		time.Sleep(3 * time.Second)
		require.Equal(t, before+1, accepted())
	})
}

// crowd is a server with sessions that have been accepted.
func (w *world) crowd(n int, config *kcp.Config) (l *kcp.Listener, server, clients []*kcp.Conn) {
	w.t.Helper()
	l = w.listen(config)
	e := w.client(config)
	for range n {
		a := w.dial(e)
		w.say(a, "*")
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
				w.say(c, string(last))
				if i%5 == 4 {
					closing(c) // the application closes it meanwhile
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
			accept, dialled := make(chan error, 1), make(chan error, 1)
			go func() {
				_, err := l.Accept()
				accept <- err
			}()
			time.AfterFunc(20*time.Millisecond, func() {
				_, err := clients[0].Endpoint().Dial(context.Background(), udpAddr(serverAddr), nil)
				dialled <- err
			})
			require.NoError(t, l.Endpoint().Shutdown(context.Background()))
			for range clients {
				require.NoError(t, <-heard)
			}
			require.ErrorIs(t, <-accept, net.ErrClosed)
			require.Error(t, <-dialled)
			s := l.Endpoint().Stats()
			require.Zero(t, s.Sessions)
			require.EqualValues(t, 20, s.Ended.Closed+s.Ended.PeerClosed+s.Ended.Aborted, "%+v", s.Ended) // of some, the answer to CLOSE was missing
			_, err := server[0].Write(nil)
			require.ErrorIs(t, err, net.ErrClosed)
			require.ErrorIs(t, l.Endpoint().Shutdown(context.Background()), net.ErrClosed)
			require.ErrorIs(t, l.Endpoint().Close(), net.ErrClosed)
			_, err = l.Endpoint().Listen()
			require.ErrorIs(t, err, net.ErrClosed)
		})
	}
}

// The end of the context aborts what is left, and the error counts it; peers
// that take nothing are counted, too, when Linger has passed.
func TestShutdownIsCutShort(t *testing.T) {
	for limit, want := range map[time.Duration]kcp.ShutdownError{
		time.Second: {Cut: 2, Cause: context.DeadlineExceeded}, time.Minute: {Undelivered: 2},
	} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			l, server, clients := w.crowd(5, &kcp.Config{Linger: 3 * time.Second, ReceiveWindow: 128})
			for i, c := range server {
				n := 1000
				if i < 2 {
					n = 1 << 20 // more than a client takes without reading
				}
				w.say(c, string(make([]byte, n)))
			}
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			start := time.Now()
			err := l.Endpoint().Shutdown(ctx)
			var failed *kcp.ShutdownError
			require.ErrorAs(t, err, &failed)
			require.Equal(t, want, *failed)
			if want.Cut > 0 {
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Equal(t, time.Second, time.Since(start))
			} else {
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

// An endpoint shut down answers a peer that has not heard of the end. A Dial that waits
// for its answer fails at once, with what a later one returns; one without sessions needs
// no time.
func TestShutdownBesideOthers(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		l, server, clients := w.crowd(1, nil)
		closed := closing(clients[0])
		time.Sleep(5 * time.Millisecond)
		require.NoError(t, server[0].Err())
		require.NoError(t, l.Endpoint().Shutdown(context.Background()))
		require.NoError(t, <-closed)
		require.Error(t, server[0].Err())

		dials, idle := w.client(nil), w.client(nil)
		dialled := make(chan error, 1)
		go func() {
			_, err := dials.Dial(context.Background(), udpAddr("10.0.0.9:9"), nil) // nobody is there
			dialled <- err
		}()
		time.Sleep(time.Second)
		start := time.Now()
		require.NoError(t, dials.Shutdown(context.Background()))
		require.ErrorIs(t, <-dialled, net.ErrClosed)
		require.Less(t, time.Since(start), time.Second)
		require.NoError(t, idle.Shutdown(cancelled()))
		_, err := idle.Dial(context.Background(), udpAddr(serverAddr), nil)
		require.ErrorIs(t, err, net.ErrClosed)
	})
}

// Shutdown of a handler would wait for what only the handler's goroutine can read. It
// says so at once, and has done nothing; on another goroutine it works meanwhile.
func TestShutdownInAHandler(t *testing.T) {
	for name, handle := range handlers {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 1, clean, func(t *testing.T, w *world) {
				a, b, l := w.pair(nil, nil)
				result, elsewhere := make(chan error, 100), make(chan error, 1)
				began := false
				handle(t, b, func() {
					if !began {
						began = true
						start := time.Now()
						result <- l.Endpoint().Shutdown(context.Background())
						require.Equal(t, start, time.Now())
						require.NoError(t, b.Err())
						go func() { elsewhere <- l.Endpoint().Shutdown(context.Background()) }()
					}
				})
				require.NoError(t, a.SendDatagram([]byte("shut down")))
				err := <-result
				require.ErrorIs(t, err, syscall.EDEADLK)
				require.ErrorContains(t, err, "in a handler")
				require.NoError(t, <-elsewhere)
				require.Equal(t, io.EOF, end(a))
			})
		})
	}
}

// Who takes events by Wait may call Shutdown.
func TestShutdownAfterWait(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, l := w.pair(nil, nil)
		g, result := kcp.NewGroup(), make(chan error, 1)
		require.NoError(t, g.Add(b))
		go func() {
			_, err := g.Wait(t.Context(), make([]kcp.Event, 1))
			result <- errors.Join(err, l.Endpoint().Shutdown(context.Background()))
		}()
		require.NoError(t, a.SendDatagram([]byte("shut down")))
		require.NoError(t, <-result)
		synctest.Wait()
	})
}
