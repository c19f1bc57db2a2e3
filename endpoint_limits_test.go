package kcp

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/stretchr/testify/require"
)

// bytesOf returns the segment of a signal.
func bytesOf(s signal) []byte {
	b := make([]byte, headerSize)
	s.encode(header{conv: 7, wnd: 128}, b)
	return b
}

func hello(token uint32) []byte { return bytesOf(signal{sigHello, 0, token}) }

// floods are first packets of unknown senders.
var floods = []struct {
	name string
	make func(r *rand.Rand) []byte
}{
	{"hello", func(r *rand.Rand) []byte { return packetOf(r.Uint32(), hello(r.Uint32()), bytesOf(infoSignal())) }},
	{"bare hello", func(r *rand.Rand) []byte { return packetOf(r.Uint32(), hello(r.Uint32())) }},
	{"hello with data", func(r *rand.Rand) []byte {
		return packetOf(r.Uint32(), hello(r.Uint32()), bytesOf(infoSignal()), push(0, 0, string(make([]byte, 500))))
	}},
	{"hello with wrong cookie", func(r *rand.Rand) []byte {
		return packetOf(r.Uint32(), hello(r.Uint32()), bytesOf(signal{sigCookie, r.Uint32(), r.Uint32()}), bytesOf(infoSignal()))
	}},
	{"push", func(r *rand.Rand) []byte { return packetOf(r.Uint32(), push(0, 0, string(make([]byte, 1300)))) }},
	{"short push", func(r *rand.Rand) []byte { return packetOf(r.Uint32(), push(0, 0, "")) }},
	{"pushes", func(r *rand.Rand) []byte {
		p := []byte(nil)
		for sn := range uint32(50) {
			p = append(p, push(sn, 0, "")...)
		}
		return packetOf(r.Uint32(), p)
	}},
	{"wask", func(r *rand.Rand) []byte { return packetOf(r.Uint32(), segment(cmdWask, 0, 0, 0, 0, "")) }},
	{"signal", func(r *rand.Rand) []byte {
		return packetOf(r.Uint32(), bytesOf(signal{signalCode(1 + r.IntN(255)), r.Uint32(), r.Uint32()}))
	}},
	{"signals", func(r *rand.Rand) []byte {
		p := []byte(nil)
		for range 40 {
			p = append(p, bytesOf(signal{signalCode(1 + r.IntN(9)), r.Uint32() * uint32(r.IntN(2)), r.Uint32()})...)
		}
		return packetOf(r.Uint32(), p)
	}},
	{"garbage", func(r *rand.Rand) []byte {
		p := make([]byte, r.IntN(1400))
		for i := range p {
			p[i] = byte(r.Uint32())
		}
		return p
	}},
}

// TestFlood floods a listener with first packets from as many
// addresses. It sends no address more than has come from it, and holds little
// memory. It serves the session that it has all the while, and has forgotten all
// the others soon after.
func TestFlood(t *testing.T) {
	t.Parallel()
	long(t)
	if !alone(t) {
		return
	}
	servers := []struct {
		name    string
		config  Config
		accepts bool
	}{
		{"default", Config{}, false},
		{"accepting", Config{}, true},
		{"refusing", Config{LegacyPeers: LegacyRefuse}, true},
		{"validating", Config{AddressValidation: ValidateAlways, LegacyPeers: LegacyRefuse}, true},
		{"fec", Config{FEC: FEC{Data: 1, Parity: 3}}, false},
	}
	for _, s := range servers {
		for _, f := range floods {
			t.Run(s.name+"/"+f.name, func(t *testing.T) {
				n := 2000
				if testing.Short() {
					n = 200
				}
				switch f.name {
				case "hello", "push", "garbage":
					if !raceEnabled && strconv.IntSize == 64 && s.name != "fec" && s.name != "refusing" {
						n = 200000
						if testing.Short() {
							n = 3000
						}
					}
				}
				inWorld(t, 8, clean, func(t *testing.T, w *world) { flood(w, &s.config, s.accepts, n, f.make) })
			})
		}
	}
}

func flood(w *world, config *Config, accepts bool, n int, make_ func(*rand.Rand) []byte) {
	t := w.t
	l := w.listen(config)
	client, _ := w.endpoint("10.0.0.2:5000", nil)
	a := w.dial(client)
	b, err := l.AcceptKCP(context.Background())
	require.NoError(t, err)
	to := l.Addr().(*net.UDPAddr).AddrPort()

	sent, replied := make([]uint16, n), make([]uint32, n)
	var tooLarge atomic.Int64
	first := time.Now()
	w.net.SetFilter(func(_, to netip.AddrPort, p []byte) bool {
		if ip := to.Addr().As4(); ip[0] == 172 {
			i := int(ip[1])<<16 | int(ip[2])<<8 | int(ip[3])
			replied[i] += uint32(len(p))
			if len(p) > int(sent[i]) || replied[i] > uint32(sent[i]) && time.Since(first) < 20*time.Second {
				tooLarge.Add(1)
			}
			return false // there is nobody
		}
		return true
	})
	accepted := make([]*Conn, 0, 4096)
	accepting := make(chan struct{})
	go func() {
		defer close(accepting)
		for accepts {
			c, err := l.AcceptKCP(context.Background())
			if err != nil {
				return
			}
			if len(accepted) == cap(accepted) { // an application closes those that have ended
				accepted = slices.DeleteFunc(accepted, func(c *Conn) bool { return c.Err() != nil && c.Abort() == nil })
			}
			accepted = append(accepted, c)
		}
	}()
	transfer := func(seed uint64) {
		want := content(seed, 50000)
		send(t, a, want)
		receive(t, b, want)
	}
	transfer(1)
	time.Sleep(3 * time.Second)
	resting := memoryInUse()
	random := rand.New(rand.NewPCG(8, 8))
	most := int64(0)
	for i := range n {
		p := make_(random)
		sent[i] = uint16(len(p))
		w.net.Inject(floodAddr(i), to, p)
		if i%100 == 99 {
			time.Sleep(time.Millisecond)
		}
		if i%(n/4) == n/4-1 {
			transfer(uint64(i))
			most = max(most, memoryInUse()-resting)
		}
	}
	synctest.Wait()
	require.Less(t, most, int64(16<<20))
	require.Zero(t, tooLarge.Load(), "replies are larger than what they answer")
	require.NoError(t, l.Close())
	<-accepting
	time.Sleep(5 * time.Minute)
	transfer(2)
	require.Equal(t, 1, l.Stats().Sessions)
	require.Zero(t, l.Stats().HalfOpen)
	if config.LegacyPeers == LegacyRefuse {
		require.Empty(t, accepted)
	}
	for _, c := range accepted {
		_ = c.Close() // has ended in silence
	}
	time.Sleep(2 * compactAfter) // spare buffers count
	require.Zero(t, l.Stats().Buffered)
	for i := range replied {
		require.LessOrEqual(t, replied[i], 4*uint32(sent[i]), "in all to %d", i)
	}
}

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
	t.Parallel()
	long(t)
	const arriving = 64 << 10 // before the endpoint looks again
	for seed := range uint64(3) {
		inWorld(t, seed, lossy, func(t *testing.T, w *world) {
			a, b, l := memoryShort(w, Config{})
			time.Sleep(10 * time.Second)
			awaitShortMemory(l)
			want := content(seed, 300000)
			go func() { _, _ = a.Write(want) }()
			for len(want) > 0 {
				n := min(len(want), 10000)
				receive(t, b, want[:n])
				want = want[n:]
				require.Less(t, l.Stats().Buffered, minMaxBuffered+leastMargin+arriving)
			}
		})
	}
}

// MaxSessionsPerAddress counts by IP address, whatever the ports.
func TestMaxSessionsPerAddress(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
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
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
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
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
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
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		const limit = 10
		l := w.listen(&Config{MaxHalfOpen: limit, Backlog: 1000})
		to := l.Addr().(*net.UDPAddr).AddrPort()
		flood := func(first, n int, segments func(i int) []byte) {
			for i := first; i < first+n; i++ {
				w.net.Inject(floodAddr(i), to, packetOf(uint32(i), segments(i)))
			}
			synctest.Wait()
		}
		flood(0, 100, func(i int) []byte { return hello(uint32(i) + 1) }) // no token is 0
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
			inWorld(t, 1, clean, func(t *testing.T, w *world) {
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

// sessions opens n sessions at once, and ends them in order.
func (w *world) sessions(e *Endpoint, l *Listener, n int) {
	w.t.Helper()
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			c := w.dial(e)
			_, err := c.Write([]byte("hello"))
			require.NoError(w.t, err)
			time.Sleep(10 * time.Second)
			require.NoError(w.t, c.Close())
		})
	}
	for range n {
		c := accepted(w.t, l)
		all.Go(func() {
			receive(w.t, c, []byte("hello"))
			_, _ = c.Read(make([]byte, 1)) // EOF
			require.NoError(w.t, c.Close())
		})
	}
	all.Wait()
}

// remembered returns how many sessions e remembers. With none, there is no memory
// and no timer for them.
func remembered(t *testing.T, e *Endpoint) int {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	n := e.table.TimeWaits.Len()
	if n == 0 {
		require.Zero(t, e.table.TimeWaits)
		require.Nil(t, e.table.expiry)
	}
	return n
}

// The table of TIME-WAIT forgets entries in their time also while new ones come,
// and all of them when the endpoint closes.
func TestTimeWaitEnds(t *testing.T) {
	inWorld(t, 2, clean, func(t *testing.T, w *world) {
		l := w.listen(nil)
		e, _ := w.endpoint("10.0.0.2:0", nil)
		w.sessions(e, l, 3)
		time.Sleep(timeWaitTime - 20*time.Second)
		w.sessions(e, l, 1)
		require.Equal(t, 4, remembered(t, e))
		time.Sleep(timeWaitTime - time.Second)
		require.Equal(t, 1, remembered(t, e))
		require.NoError(t, e.Close())
		require.Zero(t, remembered(t, e))
	})
}

// Clients that dial with TLS at the same time, more than their network may have sessions:
// the server keeps as many as it takes. The others learn it from Dial, or from the next
// call, as Dial returns half a round trip before the server has counted their session.
func TestDialsBeyondTheLimitWithTLS(t *testing.T) {
	const most, dials = 10, 40
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		l := w.listen(&Config{TLS: testTLS(), MaxSessions: 1000, MaxSessionsPerAddress: most})
		e, _ := w.endpoint("10.0.0.2:0", &Config{TLS: testTLS()})
		results := make(chan error)
		for range dials {
			go func() {
				c, err := e.Dial(t.Context(), l.Addr())
				if err == nil {
					_, err = c.Write([]byte{1})
					if _, failed := c.Read(make([]byte, 1)); err == nil {
						err = failed
					}
				}
				results <- err
			}()
		}
		for range most {
			c := accepted(t, l)
			go func() {
				b := make([]byte, 1)
				_, _ = c.Read(b)
				_, _ = c.Write(b)
			}()
		}
		served := 0
		for range dials {
			if err := <-results; err == nil {
				served++
			} else if !errors.Is(err, ErrRefused) {
				require.ErrorIs(t, err, ErrReset)
			}
		}
		require.Equal(t, most, served)
		require.Equal(t, most, l.Endpoint().Stats().Sessions)
	})
}
