package kcp

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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
	for _, validation := range []AddressValidation{ValidateUnderPressure, ValidateAlways} {
		inWorld(t, 1, clean, func(w *world) {
			var endpoint atomic.Pointer[Endpoint]
			ask := func() {
				if e := endpoint.Load(); e != nil {
					_ = e.Stats()
				}
			}
			cipher, logger := &curious{Cipher: plain, ask: ask}, &curious{ask: ask}
			controls := 0
			l := w.listen(&Config{
				Cipher: cipher, Logger: slog.New(logger), AddressValidation: validation,
				CongestionControl: func() congestion.Control { controls++; ask(); return congestion.NewBBR() },
			})
			endpoint.Store(l.Endpoint())
			e, _ := w.endpoint("10.0.0.2:0", &Config{Cipher: plain})
			a := w.dial(e)
			b, err := l.AcceptKCP(context.Background())
			require.NoError(t, err)
			send(t, a, content(1, 50000))
			receive(t, b, content(1, 50000))
			require.NoError(t, a.Close())
			c, err := l.Endpoint().Dial(context.Background(), e.LocalAddr())
			require.ErrorIs(t, err, ErrRefused)
			require.Nil(t, c)
			require.Positive(t, cipher.calls.Load())
			require.Positive(t, logger.calls.Load())
			require.Equal(t, 2, controls)
		})
	}
}

// Requests are answered with one packet for a batch, and no more of them are
// looked at, however many a packet holds. What follows is taken as ever.
func TestAnswersAreBounded(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		a, b, l := w.pair(nil, nil)
		var answered atomic.Int32
		w.net.SetFilter(func(from, _ netip.AddrPort, p []byte) bool {
			for ; from.Port() == 4000 && len(p) >= headerSize; p = p[headerSize:] {
				if h := decodeHeader(p); h.frg == uint8(sigPing|sigAnswer) {
					answered.Add(1)
				}
			}
			return true
		})
		var questions []byte
		for i := range uint32(2000) {
			questions = append(questions, packetOf(a.Conv(), bytesOf(signal{sigPing, i, i}))...)
		}
		from, to := a.LocalAddr().(*net.UDPAddr).AddrPort(), l.Addr().(*net.UDPAddr).AddrPort()
		before := b.Stats().ProbesReceived
		w.net.Inject(from, to, questions)
		time.Sleep(time.Second)
		require.EqualValues(t, maxSignals, answered.Load())
		require.EqualValues(t, maxSignals, b.Stats().ProbesReceived-before)
		require.Equal(t, Drops{Requests: 1}, b.Stats().Dropped)
		send(t, a, content(1, 50000))
		receive(t, b, content(1, 50000))
	})
}

// An unvalidated peer has few requests answered, however many packets bring them.
func TestUnvalidatedPeersAskLittle(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		l := w.listen(nil)
		from, to := floodAddr(1), l.Addr().(*net.UDPAddr).AddrPort()
		replies := 0
		w.net.SetFilter(func(_, to netip.AddrPort, p []byte) bool {
			if to == from {
				replies += len(p) / headerSize
			}
			return true
		})
		w.net.Inject(from, to, packetOf(5, hello(9)))
		time.Sleep(time.Second)
		w.settle()
		replies = 0
		for range 10 {
			for i := range uint32(100) {
				w.net.Inject(from, to, packetOf(5, bytesOf(signal{sigPing, i, i})))
				time.Sleep(time.Millisecond)
			}
		}
		w.settle()
		require.Equal(t, 10*maxSignals, replies)
		require.Equal(t, 1, l.Stats().HalfOpen)
		w.net.Inject(from, to, packetOf(5, bytesOf(signal{sigPing, 1, 1})))
		time.Sleep(time.Second)
		w.settle()
		require.Equal(t, 10*maxSignals+1, replies)
	})
}

// Cookies that nobody has asked for do not have more sent than has come.
func TestForgedCookiesWhileDialling(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		e, pc := w.endpoint("10.0.0.2:5000", &Config{DialTimeout: 5 * time.Second})
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
		require.ErrorAs(t, err, new(*NoAnswerError))
		require.Less(t, sent, came/5)
	})
}

// A flood of requests of sessions that do not exist takes nothing of the share
// of cookies, however long it goes on.
func TestRequestsLeaveCookiesAlone(t *testing.T) {
	long(t)
	inWorld(t, 1, clean, func(w *world) {
		l := w.listen(&Config{AddressValidation: ValidateAlways})
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
	inWorld(t, 1, clean, func(w *world) {
		l := w.listen(nil)
		to := l.Addr().(*net.UDPAddr).AddrPort()
		closed := make(chan *Conn, 100)
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
