package kcp

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/stretchr/testify/require"
)

// Limits on what unknown senders and peers can cause.

// memoryShort opens two sessions with a server that has little memory: one
// whose application reads slowly and which has filled it, and another.
func memoryShort(w *world, config Config) (a, b *Conn, l *Listener) {
	config.MaxBuffered = minMaxBuffered
	l = w.listen(&config)
	e, _ := w.endpoint("10.0.0.2:5000", &config)
	open := func() (a, b *Conn) {
		a = w.dial(e)
		b, err := l.AcceptKCP(context.Background())
		require.NoError(w.t, err)
		require.NoError(w.t, b.SetReadDeadline(time.Now().Add(5*time.Minute)))
		return a, b
	}
	a, b = open()
	large, slow := open()
	go func() { _, _ = large.Write(make([]byte, 10<<20)) }()
	go func() {
		for err := error(nil); err == nil; _, err = slow.Read(make([]byte, 4<<10)) {
			select {
			case <-time.After(time.Second):
			case <-slow.Done():
			}
		}
	}()
	return a, b, l
}

// awaitShortMemory waits until the server of memoryShort holds more than it may.
func awaitShortMemory(l *Listener) {
	for l.Stats().Buffered <= minMaxBuffered {
		time.Sleep(time.Millisecond)
	}
}

// While memory is short, what is read at once still gets through, on a lossy
// path too, and no more is held than that.
func TestMaxBuffered(t *testing.T) {
	long(t)
	for seed := range uint64(3) {
		inWorld(t, seed, lossy, func(w *world) {
			a, b, l := memoryShort(w, Config{})
			time.Sleep(10 * time.Second)
			awaitShortMemory(l)
			want := content(seed, 300000)
			go func() { _, _ = a.Write(want) }()
			for len(want) > 0 {
				n := min(len(want), 10000)
				receive(t, b, want[:n])
				want = want[n:]
				require.Less(t, l.Stats().Buffered, minMaxBuffered+leastMargin)
			}
		})
	}
}

// What had come early before memory became short does not keep what is missing
// from being taken.
func TestMaxBufferedWithAGap(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		var found atomic.Bool
		w.net.SetFilter(func(from, _ netip.AddrPort, p []byte) bool {
			h := decodeHeader(p)
			return found.Load() || h.cmd != cmdPush || h.sn != 3
		})
		config := Config{MaxBuffered: minMaxBuffered}
		l := w.listen(&config)
		e, _ := w.endpoint("10.0.0.2:5000", nil)
		a := w.dial(e)
		b, err := l.AcceptKCP(context.Background())
		require.NoError(t, err)
		want := content(1, 200000)
		send(t, a, want)
		time.Sleep(time.Second)
		require.Greater(t, l.Stats().Buffered, minMaxBuffered) // with nothing to read
		found.Store(true)
		require.NoError(t, b.SetReadDeadline(time.Now().Add(time.Minute)))
		receive(t, b, want)
	})
}

// Nor does it keep a message from becoming whole.
func TestMaxBufferedMessages(t *testing.T) {
	inWorld(t, 1, lossy, func(w *world) {
		a, b, _ := memoryShort(w, Config{MessageMode: true})
		time.Sleep(10 * time.Second)
		buf := make([]byte, 200000)
		for i := range uint64(5) {
			want := content(i, 100000)
			go func() { _ = a.WriteMessage(want) }()
			n, err := b.ReadMessage(buf)
			require.NoError(t, err)
			require.Equal(t, want, buf[:n])
		}
	})
}

// Of a peer whose address is not validated 16 KiB of data are held, however it is
// cut.
func TestUnvalidatedPeersBufferLittle(t *testing.T) {
	for _, frg := range []uint8{0, 200} {
		inWorld(t, 1, clean, func(w *world) {
			l := w.listen(nil)
			to := l.Addr().(*net.UDPAddr).AddrPort()
			from := netip.MustParseAddrPort("172.0.0.1:1")
			w.net.Inject(from, to, packetOf(5, hello(9)))
			for sn := range uint32(200) {
				w.net.Inject(from, to, packetOf(5, push(sn, frg-uint8(sn), string(make([]byte, 1300)))))
				w.net.Inject(from, to, packetOf(5, push(400-sn, 0, string(make([]byte, 1300)))))
			}
			synctest.Wait()
			require.Equal(t, 1, l.Stats().HalfOpen)
			require.Positive(t, l.Stats().Buffered)
			require.Less(t, l.Stats().Buffered, reservedBytes+1400)
		})
	}
}

// MaxSessionsPerAddress counts by IP address, whatever the ports.
func TestMaxSessionsPerAddress(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		l := w.listen(&Config{MaxSessionsPerAddress: 2})
		var conns []*Conn
		for _, addr := range []string{"10.0.0.2:1", "10.0.0.2:2", "10.0.0.3:1"} {
			e, _ := w.endpoint(addr, nil)
			conns = append(conns, w.dial(e))
		}
		e, _ := w.endpoint("10.0.0.2:3", &Config{DialTimeout: 2 * time.Second})
		_, err := e.Dial(context.Background(), l.Addr())
		require.ErrorIs(t, err, ErrRefused, "who has shown its address is told")
		require.Equal(t, 3, l.Stats().Sessions)
		require.Positive(t, l.Stats().DropSessions)
		require.NoError(t, conns[0].Abort())
		time.Sleep(time.Second)
		w.dial(e)
		require.Equal(t, 3, l.Stats().Sessions)
	})
}

// Sessions that begin with a cookie count as those whose peers validate their
// addresses later.
func TestMaxSessionsPerAddressWithCookies(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		l := w.listen(&Config{MaxSessionsPerAddress: 2, AddressValidation: ValidateAlways})
		e, _ := w.endpoint("10.0.0.2:0", &Config{DialTimeout: 2 * time.Second})
		w.dial(e)
		w.dial(e)
		_, err := e.Dial(context.Background(), l.Addr())
		require.ErrorIs(t, err, ErrRefused)
		require.Equal(t, 2, l.Stats().Sessions)
	})
}

// From half of MaxSessions on, a HELLO opens a session only of a sender that has
// shown its address, and gets an answer when the table is full.
func TestCookiesAtHalfOfMaxSessions(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		l := w.listen(&Config{MaxSessions: 8, MaxSessionsPerAddress: 8})
		to := l.Addr().(*net.UDPAddr).AddrPort()
		e, _ := w.endpoint("10.0.0.2:0", nil)
		for range 4 {
			w.dial(e)
		}
		for i := range 100 {
			w.net.Inject(floodAddr(i), to, packetOf(uint32(i), hello(9), bytesOf(infoSignal())))
		}
		synctest.Wait()
		require.Equal(t, 4, l.Stats().Sessions)
		require.EqualValues(t, 100, l.Stats().CookiesSent)
		for range 4 {
			w.dial(e)
		}
		start := time.Now()
		_, err := e.Dial(context.Background(), l.Addr())
		require.ErrorIs(t, err, ErrRefused)
		require.Equal(t, 2*roundTrip, time.Since(start))
	})
}

// MaxHalfOpen holds, evicts what has had its chance, and leaves room for who
// answers: from half of it on cookies are asked for, which need no room.
func TestMaxHalfOpen(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		const limit = 10
		l := w.listen(&Config{MaxHalfOpen: limit, Backlog: 1000})
		to := l.Addr().(*net.UDPAddr).AddrPort()
		flood := func(first, n int, segments func(i int) []byte) {
			for i := first; i < first+n; i++ {
				w.net.Inject(floodAddr(i), to, packetOf(uint32(i), segments(i)))
			}
			synctest.Wait()
		}
		flood(0, 100, func(i int) []byte { return hello(uint32(i)) })
		require.Equal(t, limit/2, l.Stats().HalfOpen)
		require.EqualValues(t, 100-limit/2, l.Stats().CookiesSent)
		flood(100, 100, func(int) []byte { return push(0, 0, "x") })
		require.Equal(t, limit, l.Stats().HalfOpen)
		require.EqualValues(t, 100-limit/2, l.Stats().DropHalfOpen)

		e, _ := w.endpoint("10.0.0.2:0", nil)
		start := time.Now()
		w.dial(e)
		require.Equal(t, 2*roundTrip, time.Since(start)) // with a cookie
		require.Equal(t, limit+1, l.Stats().Sessions)

		time.Sleep(evictAfter)
		flood(200, 3, func(int) []byte { return push(0, 0, "x") })
		require.Equal(t, limit, l.Stats().HalfOpen)
		require.EqualValues(t, 100-limit/2, l.Stats().DropHalfOpen)
	})
}

// A cookie is good for who got it, for what it was given for, and for a while.
func TestCookies(t *testing.T) {
	const conv, token = 5, 99
	from, other := netip.MustParseAddrPort("172.0.0.1:1"), netip.MustParseAddrPort("172.0.0.1:2")
	cases := []struct {
		name        string
		from        netip.AddrPort
		conv, token uint32
		age         time.Duration
		change      signal
		good        bool
	}{
		{name: "good", from: from, conv: conv, token: token, good: true},
		{name: "young", from: from, conv: conv, token: token, age: admission.CookieTime, good: true},
		{name: "old", from: from, conv: conv, token: token, age: 2*admission.CookieTime + time.Second},
		{name: "another port", from: other, conv: conv, token: token},
		{name: "another address", from: netip.MustParseAddrPort("172.0.0.2:1"), conv: conv, token: token},
		{name: "another conv", from: from, conv: conv + 1, token: token},
		{name: "another token", from: from, conv: conv, token: token + 1},
		{name: "wrong sn", from: from, conv: conv, token: token, change: signal{0, 1, 0}},
		{name: "wrong ts", from: from, conv: conv, token: token, change: signal{0, 0, 1}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			inWorld(t, 1, clean, func(w *world) {
				l := w.listen(&Config{AddressValidation: ValidateAlways})
				to := l.Addr().(*net.UDPAddr).AddrPort()
				var cookie signal
				w.net.SetFilter(func(_, to netip.AddrPort, p []byte) bool {
					if s := signalsOf(p); len(s) > 0 && s[0].code == sigCookie {
						cookie = s[0]
					}
					return true
				})
				w.net.Inject(from, to, packetOf(conv, hello(token), bytesOf(infoSignal())))
				synctest.Wait()
				require.Equal(t, sigCookie, cookie.code)
				require.Zero(t, l.Stats().Sessions)
				time.Sleep(tc.age)
				shown := signal{sigCookie, cookie.sn ^ tc.change.sn, cookie.ts ^ tc.change.ts}
				w.net.Inject(tc.from, to, packetOf(tc.conv, hello(tc.token), bytesOf(shown), bytesOf(infoSignal())))
				synctest.Wait()
				want := 0
				if tc.good {
					want = 1
				}
				require.Equal(t, want, l.Stats().Sessions)
				require.Equal(t, want, l.Stats().Backlog) // proven
				require.EqualValues(t, 2-want, l.Stats().CookiesSent)
			})
		})
	}
}
