package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/netsim"
	"github.com/arqnet/kcp/stats"
	"github.com/stretchr/testify/require"
)

// limitCase is a situation in which one thing limits a session.
type limitCase struct {
	name           string
	client, server kcp.Config
	link           netsim.LinkConfig
	write          int           // bytes that the client writes every pause
	pause          time.Duration // 0: it writes as much as it can
	reads          int           // bytes that the server reads a second; 0: all
	sender         []stats.Limit // what limits the client
	receiver       stats.Limit   // what limits the server
}

func limitCases() []limitCase {
	fast := netsim.LinkConfig{Delay: 40 * time.Millisecond, Rate: 10 << 20, Queue: 2 << 20}
	slow := netsim.LinkConfig{Delay: 20 * time.Millisecond, Rate: 256 << 10, Queue: 64 << 10}
	lossy := slow
	lossy.Loss = 0.02
	path, application := []stats.Limit{stats.LimitCongestion, stats.LimitPacing}, stats.LimitApplication
	peer := []stats.Limit{stats.LimitPeerWindow}
	return []limitCase{
		{name: "small window", server: kcp.Config{ReceiveWindow: 128}, link: fast, sender: peer, receiver: application},
		{name: "slow reader", link: fast, reads: 200_000, sender: peer, receiver: stats.LimitReader},
		{name: "cap", client: kcp.Config{MaxRate: 200_000}, link: fast, sender: []stats.Limit{stats.LimitRate}, receiver: application},
		{name: "slow path", link: slow, sender: path, receiver: application},
		{name: "slow path with loss", link: lossy, sender: path, receiver: application},
		{name: "idle application", link: fast, write: 1000, pause: 100 * time.Millisecond, sender: []stats.Limit{application}, receiver: application},
		{name: "small write buffer", client: kcp.Config{WriteBuffer: 64 << 10}, link: fast, sender: []stats.Limit{stats.LimitWriteBuffer}, receiver: application},
		{name: "small send window", client: kcp.Config{SendWindow: 32}, link: fast, sender: []stats.Limit{stats.LimitSendWindow}, receiver: application},
	}
}

// A session names what limits it, for at least 0.95 of the time, also within a stream.
func TestLimitedBy(t *testing.T) {
	t.Parallel()
	for _, c := range limitCases() {
		for _, streamed := range []bool{false, true} {
			if streamed && c.client.WriteBuffer > 0 {
				continue // that of streams has what waits, and not what is in flight
			}
			t.Run(fmt.Sprintf("%s/stream=%v", c.name, streamed), func(t *testing.T) {
				inWorld(t, 1, c.link, func(t *testing.T, w *world) { c.run(t, w, streamed) })
			})
		}
	}
}

func (c *limitCase) run(t *testing.T, w *world, streamed bool) {
	a, b, _ := w.pair(&c.client, &c.server)
	from, to := io.ReadWriter(a), io.ReadWriter(b)
	if streamed {
		s := openStream(t, a, nil)
		w.say(s, "*")
		from, to = s, acceptStream(t, b)
	}
	var ended sync.WaitGroup
	defer ended.Wait()
	ended.Go(func() { c.pour(from) })
	ended.Go(func() { c.drain(to) })
	defer func() { require.NoError(t, a.Abort(0, "")); require.NoError(t, b.Abort(0, "")) }()
	time.Sleep(5 * time.Second) // until it is steady
	before := [2]stats.Conn{a.Stats(), b.Stats()}
	length := time.Duration(some(30, 10)) * time.Second
	time.Sleep(length)
	after := [2]stats.Conn{a.Stats(), b.Stats()}
	share := func(end int, of ...stats.Limit) (share float64) {
		for _, l := range of {
			share += (after[end].Limited[l] - before[end].Limited[l]).Seconds() / length.Seconds()
		}
		return share
	}
	for end := range after {
		sum := 0.0
		for l := range after[end].Limited {
			sum += share(end, stats.Limit(l))
			t.Logf("%d %-20s %.4f", end, stats.Limit(l), share(end, stats.Limit(l)))
		}
		require.InDelta(t, 1, sum, 1e-9, "each moment counts once")
	}
	require.GreaterOrEqual(t, share(0, c.sender...), 0.95)
	require.GreaterOrEqual(t, share(1, c.receiver), 0.95)
	require.Positive(t, share(0, after[0].LimitedBy), "the present limit is one of these")
}

// pour writes as the case says, until the session ends.
func (c *limitCase) pour(w io.Writer) {
	p := make([]byte, 16<<10)
	if c.write > 0 {
		p = p[:c.write]
	}
	for {
		if _, err := w.Write(p); err != nil {
			return
		}
		time.Sleep(c.pause)
	}
}

// drain reads as the case says, until the session ends.
func (c *limitCase) drain(r io.Reader) {
	p := make([]byte, 64<<10)
	if c.reads > 0 {
		p = p[:2000]
	}
	for {
		n, err := r.Read(p)
		if err != nil {
			return
		}
		if c.reads > 0 {
			time.Sleep(time.Duration(float64(n) / float64(c.reads) * float64(time.Second)))
		}
	}
}

// stats.Conn says how many streams are open, and how far the reader is behind.
func TestStatsCountStreams(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&kcp.Config{MessageMode: true}, nil)
		require.Zero(t, a.Stats().Streams)
		var all [3]*kcp.Stream
		for i := range all {
			all[i] = openStream(t, a, nil)
			w.say(all[i], "*")
		}
		time.Sleep(time.Second)
		require.Equal(t, [2]int{3, 3}, [2]int{a.Stats().Streams, b.Stats().Streams})
		require.NoError(t, all[1].Reset(7))
		require.NoError(t, acceptStream(t, b).Close())
		require.NoError(t, all[0].Close())
		for range 300 {
			w.say(a, "*")
		}
		time.Sleep(time.Second)
		require.Equal(t, [2]int{1, 1}, [2]int{a.Stats().Streams, b.Stats().Streams})
		require.Equal(t, 300, a.Stats().RemoteUnread)
		_, err := io.ReadFull(b, make([]byte, 300))
		require.NoError(t, err)
		w.say(a, "*")
		time.Sleep(time.Second)
		require.Equal(t, 1, a.Stats().RemoteUnread)
	})
}

// floods are first packets of unknown senders.
var floods = []struct {
	name string
	make func(r *rand.Rand) []byte
}{
	{"hello", func(r *rand.Rand) []byte {
		return packetOf(r.Uint32(), helloSegment(r.Uint32()), testenv.SegmentOf(session.InfoSignal()))
	}},
	{"bare hello", func(r *rand.Rand) []byte { return packetOf(r.Uint32(), helloSegment(r.Uint32())) }},
	{"hello with data", func(r *rand.Rand) []byte {
		return packetOf(r.Uint32(), helloSegment(r.Uint32()), testenv.SegmentOf(session.InfoSignal()), push(0, 0, string(make([]byte, 500))))
	}},
	{"hello with wrong cookie", func(r *rand.Rand) []byte {
		return packetOf(r.Uint32(), helloSegment(r.Uint32()), testenv.SegmentOf(wire.Signal{Code: wire.Cookie, SN: r.Uint32(), TS: r.Uint32()}), testenv.SegmentOf(session.InfoSignal()))
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
		return packetOf(r.Uint32(), testenv.SegmentOf(wire.Signal{Code: wire.Code(1 + r.IntN(255)), SN: r.Uint32(), TS: r.Uint32()}))
	}},
	{"signals", func(r *rand.Rand) []byte {
		p := []byte(nil)
		for range 40 {
			p = append(p, testenv.SegmentOf(wire.Signal{Code: wire.Code(1 + r.IntN(9)), SN: r.Uint32() * uint32(r.IntN(2)), TS: r.Uint32()})...)
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
		config kcp.Config
	}{
		{"default", kcp.Config{}},
		{"refusing", kcp.Config{LegacyPeers: kcp.LegacyRefuse}},
		{"validating", kcp.Config{AddressValidation: kcp.ValidateAlways, LegacyPeers: kcp.LegacyRefuse}},
		{"fec", kcp.Config{FEC: kcp.FEC{Data: 1, Parity: 3}}},
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

// From half of MaxSessions on, a HELLO opens a session only of a sender that has
// shown its address, and gets an answer when the table is full.
func TestCookiesAtHalfOfMaxSessions(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		l := w.listen(&kcp.Config{Limits: kcp.Limits{MaxSessions: 8, MaxSessionsPerAddress: 8}})
		to := l.Addr().(*net.UDPAddr).AddrPort()
		e, _ := w.endpoint("10.0.0.2:0", nil)
		for range 4 {
			w.dial(e)
		}
		for i := range 100 {
			w.net.Inject(floodAddr(i), to, packetOf(uint32(i), helloSegment(9), testenv.SegmentOf(session.InfoSignal())))
		}
		synctest.Wait()
		require.Equal(t, 4, l.Endpoint().Stats().Sessions)
		require.EqualValues(t, 100, l.Endpoint().Stats().CookiesSent)
		for range 4 {
			w.dial(e)
		}
		start := time.Now()
		_, err := e.Dial(context.Background(), l.Addr(), nil)
		require.ErrorIs(t, err, kcp.ErrRefused)
		require.Equal(t, 2*roundTrip, time.Since(start))
	})
}

// MaxHalfOpen holds, evicts what has had its chance, and leaves room for who
// answers: from half of it on cookies are asked for, which need no room.
func TestMaxHalfOpen(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		const limit = 10
		l := w.listen(&kcp.Config{Limits: kcp.Limits{MaxHalfOpen: limit, Backlog: 1000}})
		to := l.Addr().(*net.UDPAddr).AddrPort()
		flood := func(first, n int, segments func(i int) []byte) {
			for i := first; i < first+n; i++ {
				w.net.Inject(floodAddr(i), to, packetOf(uint32(i), segments(i)))
			}
			synctest.Wait()
		}
		flood(0, 100, func(i int) []byte { return helloSegment(uint32(i) + 1) }) // no token is 0
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
		l := w.listen(&kcp.Config{TLS: testTLS(), Limits: kcp.Limits{MaxSessions: 1000, MaxSessionsPerAddress: most}})
		e, _ := w.endpoint("10.0.0.2:0", &kcp.Config{TLS: testTLS()})
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
			} else if !errors.Is(err, kcp.ErrRefused) {
				require.ErrorIs(t, err, kcp.ErrReset)
			}
		}
		require.Equal(t, most, served)
		require.Equal(t, most, l.Endpoint().Stats().Sessions)
	})
}

// flood has n unknown senders send a packet each to a server, beside a session.
func flood(w *world, config *kcp.Config, n int, make_ func(*rand.Rand) []byte) {
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
	if config.LegacyPeers == kcp.LegacyRefuse {
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
	for _, mode := range []kcp.AddressValidation{kcp.ValidateUnderPressure, kcp.ValidateAlways} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			l := w.listen(&kcp.Config{Limits: kcp.Limits{MaxSessionsPerAddress: 2}, AddressValidation: mode})
			var conns []*kcp.Conn
			for _, addr := range []string{"10.0.0.2:1", "10.0.0.2:2", "10.0.0.3:1"} {
				e, _ := w.endpoint(addr, nil)
				conns = append(conns, w.dial(e))
			}
			e, _ := w.endpoint("10.0.0.2:3", &kcp.Config{DialTimeout: 2 * time.Second})
			_, err := e.Dial(context.Background(), l.Addr(), nil)
			require.ErrorIs(t, err, kcp.ErrRefused, "who has shown its address is told")
			require.Equal(t, 3, l.Endpoint().Stats().Sessions)
			require.Positive(t, l.Endpoint().Stats().DropSessions)
			require.NoError(t, conns[0].Abort(0, ""))
			time.Sleep(time.Second)
			w.dial(e)
			require.Equal(t, 3, l.Endpoint().Stats().Sessions)
		})
	}
}

func helloSegment(token uint32) []byte {
	return testenv.SegmentOf(wire.Signal{Code: wire.Hello, SN: 0, TS: token})
}
