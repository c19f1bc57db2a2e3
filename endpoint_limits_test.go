package kcp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/stretchr/testify/require"
)

// bytesOf returns the segment of a signal.
func bytesOf(s wire.Signal) []byte {
	b := make([]byte, wire.HeaderSize)
	s.Encode(wire.Header{Conv: 7, Wnd: 128}, b)
	return b
}

func hello(token uint32) []byte { return bytesOf(wire.Signal{Code: wire.Hello, SN: 0, TS: token}) }

// floods are first packets of unknown senders.
var floods = []struct {
	name string
	make func(r *rand.Rand) []byte
}{
	{"hello", func(r *rand.Rand) []byte {
		return packetOf(r.Uint32(), hello(r.Uint32()), bytesOf(session.InfoSignal()))
	}},
	{"bare hello", func(r *rand.Rand) []byte { return packetOf(r.Uint32(), hello(r.Uint32())) }},
	{"hello with data", func(r *rand.Rand) []byte {
		return packetOf(r.Uint32(), hello(r.Uint32()), bytesOf(session.InfoSignal()), push(0, 0, string(make([]byte, 500))))
	}},
	{"hello with wrong cookie", func(r *rand.Rand) []byte {
		return packetOf(r.Uint32(), hello(r.Uint32()), bytesOf(wire.Signal{Code: wire.Cookie, SN: r.Uint32(), TS: r.Uint32()}), bytesOf(session.InfoSignal()))
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
	{"wask", func(r *rand.Rand) []byte { return packetOf(r.Uint32(), segment(wire.CmdWask, 0, 0, 0, 0, "")) }},
	{"signal", func(r *rand.Rand) []byte {
		return packetOf(r.Uint32(), bytesOf(wire.Signal{Code: wire.Code(1 + r.IntN(255)), SN: r.Uint32(), TS: r.Uint32()}))
	}},
	{"signals", func(r *rand.Rand) []byte {
		p := []byte(nil)
		for range 40 {
			p = append(p, bytesOf(wire.Signal{Code: wire.Code(1 + r.IntN(9)), SN: r.Uint32() * uint32(r.IntN(2)), TS: r.Uint32()})...)
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
		name   string
		config Config
	}{
		{"default", Config{}},
		{"refusing", Config{LegacyPeers: LegacyRefuse}},
		{"validating", Config{AddressValidation: ValidateAlways, LegacyPeers: LegacyRefuse}},
		{"fec", Config{FEC: FEC{Data: 1, Parity: 3}}},
	}
	for _, s := range servers {
		for _, f := range floods {
			t.Run(s.name+"/"+f.name, func(t *testing.T) {
				n := 2000
				if testing.Short() {
					n = 200
				}
				if s.name == "default" && (f.name == "hello" || f.name == "push") && !raceEnabled && strconv.IntSize == 64 {
					n *= 15 // more than MaxHalfOpen
				}
				inWorld(t, 8, clean, func(t *testing.T, w *world) { flood(w, &s.config, n, f.make) })
			})
		}
	}
}

// Limits on what unknown senders and peers can cause.

// From half of MaxSessions on, a HELLO opens a session only of a sender that has
// shown its address, and gets an answer when the table is full.
func TestCookiesAtHalfOfMaxSessions(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		l := w.listen(&Config{Limits: Limits{MaxSessions: 8, MaxSessionsPerAddress: 8}})
		to := l.Addr().(*net.UDPAddr).AddrPort()
		e, _ := w.endpoint("10.0.0.2:0", nil)
		for range 4 {
			w.dial(e)
		}
		for i := range 100 {
			w.net.Inject(floodAddr(i), to, packetOf(uint32(i), hello(9), bytesOf(session.InfoSignal())))
		}
		synctest.Wait()
		require.Equal(t, 4, l.Endpoint().Stats().Sessions)
		require.EqualValues(t, 100, l.Endpoint().Stats().CookiesSent)
		for range 4 {
			w.dial(e)
		}
		start := time.Now()
		_, err := e.Dial(context.Background(), l.Addr(), nil)
		require.ErrorIs(t, err, ErrRefused)
		require.Equal(t, 2*roundTrip, time.Since(start))
	})
}

// MaxHalfOpen holds, evicts what has had its chance, and leaves room for who
// answers: from half of it on cookies are asked for, which need no room.
func TestMaxHalfOpen(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		const limit = 10
		l := w.listen(&Config{Limits: Limits{MaxHalfOpen: limit, Backlog: 1000}})
		to := l.Addr().(*net.UDPAddr).AddrPort()
		flood := func(first, n int, segments func(i int) []byte) {
			for i := first; i < first+n; i++ {
				w.net.Inject(floodAddr(i), to, packetOf(uint32(i), segments(i)))
			}
			synctest.Wait()
		}
		flood(0, 100, func(i int) []byte { return hello(uint32(i) + 1) }) // no token is 0
		require.Equal(t, limit/2, l.Endpoint().Stats().HalfOpen)
		require.EqualValues(t, 100-limit/2, l.Endpoint().Stats().CookiesSent)
		flood(100, 100, func(int) []byte { return push(0, 0, "x") })
		require.Equal(t, limit, l.Endpoint().Stats().HalfOpen)
		require.EqualValues(t, 100-limit/2, l.Endpoint().Stats().DropHalfOpen)

		e, _ := w.endpoint("10.0.0.2:0", nil)
		start := time.Now()
		w.dial(e)
		require.Equal(t, 2*roundTrip, time.Since(start)) // with a cookie
		require.Equal(t, limit+1, l.Endpoint().Stats().Sessions)

		time.Sleep(session.EvictAfter)
		flood(200, 3, func(int) []byte { return push(0, 0, "x") })
		require.Equal(t, limit, l.Endpoint().Stats().HalfOpen)
		require.EqualValues(t, 100-limit/2, l.Endpoint().Stats().DropHalfOpen)
	})
}

// Clients that dial with TLS at the same time, more than their network may have sessions:
// the server keeps as many as it takes. The others learn it from Dial, or from the next
// call, as Dial returns half a round trip before the server has counted their session.
func TestDialsBeyondTheLimitWithTLS(t *testing.T) {
	const most, dials = 10, 40
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		l := w.listen(&Config{TLS: testTLS(), Limits: Limits{MaxSessions: 1000, MaxSessionsPerAddress: most}})
		e, _ := w.endpoint("10.0.0.2:0", &Config{TLS: testTLS()})
		results := make(chan error)
		for range dials {
			go func() {
				c, err := e.Dial(t.Context(), l.Addr(), nil)
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

// flood has n unknown senders send a packet each to a server, beside a session.
func flood(w *world, config *Config, n int, make_ func(*rand.Rand) []byte) {
	t := w.t
	a, b, l := w.pair(nil, config)
	to := l.Addr().(*net.UDPAddr).AddrPort()
	sent, replied := make([]uint16, n), make([]uint32, n)
	var tooLarge atomic.Int64
	first := time.Now()
	w.net.SetFilter(func(_, to netip.AddrPort, p []byte) bool {
		ip := to.Addr().As4()
		if ip[0] != 172 {
			return true
		}
		i := int(ip[1])<<16 | int(ip[2])<<8 | int(ip[3])
		replied[i] += uint32(len(p))
		if len(p) > int(sent[i]) || replied[i] > uint32(sent[i]) && time.Since(first) < 20*time.Second {
			tooLarge.Add(1)
		}
		return false // there is nobody
	})
	w.move(a, b, 1, 50000)
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
			w.move(a, b, uint64(i), 50000)
			most = max(most, memoryInUse()-resting)
		}
	}
	synctest.Wait()
	require.Less(t, most, int64(16<<20))
	require.Zero(t, tooLarge.Load(), "replies are larger than what they answer")
	if config.LegacyPeers == LegacyRefuse {
		require.Zero(t, l.Endpoint().Stats().Backlog)
	}
	require.NoError(t, l.Close())
	time.Sleep(5 * time.Minute)
	w.move(a, b, 2, 50000)
	require.Equal(t, 1, l.Endpoint().Stats().Sessions)
	require.Zero(t, l.Endpoint().Stats().HalfOpen)
	time.Sleep(2 * session.CompactAfter) // spare buffers count
	require.Zero(t, l.Endpoint().Stats().Buffered)
	for i := range replied {
		require.LessOrEqual(t, replied[i], 4*uint32(sent[i]), "in all to %d", i)
	}
}

// MaxSessionsPerAddress counts by IP address, whatever the ports, and whether sessions
// begin with a cookie or not.
func TestMaxSessionsPerAddress(t *testing.T) {
	for _, mode := range []AddressValidation{ValidateUnderPressure, ValidateAlways} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			l := w.listen(&Config{Limits: Limits{MaxSessionsPerAddress: 2}, AddressValidation: mode})
			var conns []*Conn
			for _, addr := range []string{"10.0.0.2:1", "10.0.0.2:2", "10.0.0.3:1"} {
				e, _ := w.endpoint(addr, nil)
				conns = append(conns, w.dial(e))
			}
			e, _ := w.endpoint("10.0.0.2:3", &Config{DialTimeout: 2 * time.Second})
			_, err := e.Dial(context.Background(), l.Addr(), nil)
			require.ErrorIs(t, err, ErrRefused, "who has shown its address is told")
			require.Equal(t, 3, l.Endpoint().Stats().Sessions)
			require.Positive(t, l.Endpoint().Stats().DropSessions)
			require.NoError(t, conns[0].Abort(0, ""))
			time.Sleep(time.Second)
			w.dial(e)
			require.Equal(t, 3, l.Endpoint().Stats().Sessions)
		})
	}
}

// The table of TIME-WAIT forgets entries in their time also while new ones come, and all of
// them when the endpoint closes. With none, there is no memory and no timer for them.
func TestTimeWaitEnds(t *testing.T) {
	inWorld(t, 2, clean, func(t *testing.T, w *world) {
		l := w.listen(nil)
		e, _ := w.endpoint("10.0.0.2:0", nil)
		end := func(n int) {
			var conns []*Conn
			for range n {
				conns = append(conns, w.dial(e))
				accepted(t, l)
			}
			for _, c := range conns { // at one time
				require.NoError(t, c.Abort(0, ""))
			}
		}
		remembered := func() int {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.table.TimeWaits.Len()
		}
		end(3)
		time.Sleep(session.TimeWaitTime - 20*time.Second)
		end(1)
		require.Equal(t, 4, remembered())
		time.Sleep(session.TimeWaitTime - time.Second)
		require.Equal(t, 1, remembered())
		require.NoError(t, e.Close())
		require.Zero(t, e.table.TimeWaits)
		require.Nil(t, e.table.expiry)
	})
}

// Who makes room where tables are full: strangers of one site end each other's sessions,
// and not those of others, who get in at once.

// strangers dial without end from many networks, 51 times a second, and leave each
// handshake unfinished, until stop is called.
func (w *world) strangers(l *Listener, config *Config, networks int, addr func(i int) string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var all []*Endpoint
	theirs := make(map[netip.Addr]bool)
	for i := range networks {
		e, _ := w.endpoint(addr(i), config)
		all = append(all, e)
		theirs[e.LocalAddr().(*net.UDPAddr).AddrPort().Addr()] = true
	}
	w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
		return p[4] != 0xa1 || !theirs[from.Addr()] && !theirs[to.Addr()] // under the handshake keys
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ctx.Err() == nil; i++ {
			go func() { _, _ = all[i%networks].Dial(ctx, l.Addr(), nil) }()
			time.Sleep(time.Second / 51)
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// All dials of others succeed within 2 s while strangers of one site, in as many subnets
// as they like, fill the table of handshakes, or that of all sessions; and so do dials
// from the strangers' own site while the strangers have one subnet.
func TestStrangersOfOneSite(t *testing.T) {
	t.Parallel()
	long(t)
	v6 := func(i int) string { return fmt.Sprintf("[2001:db8:1:%x::1]:0", i) }
	for name, test := range map[string]struct {
		config   Config
		networks int
		filling  time.Duration
		addr     func(i int) string
		honest   string
		shaking  int // handshakes in the full table
	}{
		"600 networks of a /48": {Config{Limits: Limits{MaxHalfOpen: 256}}, 600, 6 * time.Second, v6, "192.0.%d.1:0", 256},
		"behind cookies":        {Config{Limits: Limits{MaxHalfOpen: 64}, AddressValidation: ValidateAlways}, 100, 2 * time.Second, v6, "[2001:db9:%x::1]:0", 64},
		"addresses of a /24":    {Config{Limits: Limits{MaxHalfOpen: 64}}, 100, 2 * time.Second, func(i int) string { return fmt.Sprintf("172.16.0.%d:0", i+1) }, "192.0.%d.1:0", 64},
		"MaxSessions":           {Config{Limits: Limits{MaxSessions: 64, MaxHalfOpen: 1000}}, 100, 2 * time.Second, v6, "192.0.%d.1:0", 63},
		"their own /24":         {Config{Limits: Limits{MaxHalfOpen: 64}}, 6, 4 * time.Second, func(i int) string { return fmt.Sprintf("172.16.0.%d:0", i+1) }, "172.16.0.%d:7", 60},
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && test.networks == 600 {
				t.Skip("the others show the same")
			}
			inWorld(t, 1, clean, func(t *testing.T, w *world) {
				config := secured(test.config)
				l := w.listen(config)
				stop := w.strangers(l, config, test.networks, test.addr)
				defer stop()
				time.Sleep(test.filling)
				for i := range 20 {
					e, _ := w.endpoint(fmt.Sprintf(test.honest, i+10), config)
					ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
					c, err := e.Dial(ctx, l.Addr(), nil)
					cancel()
					require.NoError(t, err, "dial %d", i)
					bothWays(t, c, accepted(t, l), []byte("up"), []byte("down"))
					e.mu.RLock()
					require.GreaterOrEqual(t, l.ep.table.Shaking(), test.shaking*3/4, "there is no attack")
					e.mu.RUnlock()
					require.NoError(t, c.Close())
					time.Sleep(100 * time.Millisecond)
				}
			})
		})
	}
}
