package kcp

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// memoryHog is a way to hold memory of an endpoint without progress.
type memoryHog struct {
	name string
	n    int                // packets
	make func(i int) []byte // the i-th packet
	lean bool               // the endpoint drops it without ending the session
}

// streamMessages returns n messages of a stream of the peer, from first on,
// each of size bytes, as segments from sn on. Message 0 opens the stream.
func streamMessages(id, sn uint32, first, n, size int) (p []byte) {
	for i := range n {
		h := streams.Header{ID: id, Kind: streams.Data, End: true, Opens: true, MID: machine.Seq(first + i)}
		p = append(p, segment(wire.CmdStream, 0, 0, sn+uint32(i), 0, string(h.Append(nil))+string(make([]byte, size)))...)
	}
	return p
}

// memoryHogs are peers each of which holds more than 70 KB.
var memoryHogs = []memoryHog{
	{name: "early segments", n: 60, make: func(i int) []byte { return push(uint32(1+i), 0, string(make([]byte, 1300))) }},
	{name: "small early segments", n: 30, make: func(i int) []byte { return manyPushes(uint32(1+i*30), 30, "x") }},
	{name: "unread data", n: 60, make: func(i int) []byte { return push(uint32(i), 0, string(make([]byte, 1300))) }},
	{name: "endless message", n: 60, make: func(i int) []byte { return push(uint32(i), uint8(255-i), string(make([]byte, 1300))) }},
	{name: "stream messages behind a missing one", n: 60, make: func(i int) []byte {
		return streamMessages(uint32(1+i%2*2), uint32(i), 1+i/2, 1, 1300)
	}},
	{name: "unread stream messages", n: 60, make: func(i int) []byte { return streamMessages(uint32(1+i%2*2), uint32(i), i/2, 1, 1300) }},
	{name: "unread datagrams", n: 60, make: func(i int) []byte { return oob(make([]byte, 1300)) }, lean: true},
	{name: "FEC", n: 200, make: func(i int) []byte { return fecShard(uint32(2*i), push(0, 0, string(make([]byte, 1300)))) }, lean: true},
}

// memoryWorld is a server that is short of memory.
type memoryWorld struct {
	*world
	l        *Listener
	to       netip.AddrPort
	mu       sync.Mutex
	tokens   map[netip.AddrPort]uint32
	accepted map[string]*Conn
}

// newMemoryWorld starts a server whose application reads nothing by itself.
func newMemoryWorld(w *world, config *Config) *memoryWorld {
	m := &memoryWorld{world: w, l: w.listen(config), tokens: map[netip.AddrPort]uint32{}, accepted: map[string]*Conn{}}
	m.to = m.l.Addr().(*net.UDPAddr).AddrPort()
	w.net.SetFilter(func(_, to netip.AddrPort, p []byte) bool {
		if to.Addr().As4()[0] != 172 {
			return true
		}
		for _, s := range testenv.SignalsOf(p) {
			if s.Code == wire.Welcome {
				m.tokens[to] = s.SN
			}
		}
		return false
	})
	go func() {
		for c, err := m.l.AcceptKCP(context.Background()); err == nil; c, err = m.l.AcceptKCP(context.Background()) {
			m.mu.Lock()
			m.accepted[c.RemoteAddr().String()] = c
			m.mu.Unlock()
		}
	}()
	return m
}

// hog opens n sessions, each of a peer of its own that is validated.
func (m *memoryWorld) hog(n int) {
	for i := range n {
		m.net.Inject(floodAddr(i), m.to, packetOf(uint32(1000+i), hello(9), testenv.SegmentOf(session.InfoSignal())))
	}
	m.settle()
	for i := range n {
		m.net.Inject(floodAddr(i), m.to, packetOf(uint32(1000+i), testenv.SegmentOf(wire.Signal{Code: wire.Confirm, SN: m.tokens[floodAddr(i)], TS: 9})))
	}
	m.settle()
}

// feed has each of n hogs send what it holds.
func (m *memoryWorld) feed(n int, h *memoryHog) {
	for j := range h.n {
		for i := range n {
			m.net.Inject(floodAddr(i), m.to, withConv(uint32(1000+i), h.make(j)))
		}
		time.Sleep(time.Millisecond)
	}
	m.settle()
}

// session returns both ends of a session with an honest peer.
func (m *memoryWorld) session(addr string, config *Config) (a, b *Conn) {
	e, _ := m.endpoint(addr, config)
	a = m.dial(e)
	send(m.t, a, []byte("here"))
	for b == nil {
		time.Sleep(time.Millisecond)
		m.mu.Lock()
		b = m.accepted[a.LocalAddr().String()]
		m.mu.Unlock()
	}
	receive(m.t, b, []byte("here"))
	return a, b
}

// beside returns the rate of an upload, in bytes a second, over a path with
// losses beside hogs that hold more than the endpoint may.
func (m *memoryWorld) beside(h *memoryHog, hogs, size int) (rate float64) {
	t, limit := m.t, m.l.ep.config.Limits.MaxBuffered
	a, b := m.session("10.0.0.2:5000", nil)
	slowly, slow := m.session("10.0.0.3:5000", &Config{MTU: 150, MaxMTU: 150})
	calm, idle := m.session("10.0.0.4:5000", nil)
	require.NoError(t, slow.SetWindow(0, 128)) // segments of 168 bytes, with their places
	send(t, slowly, make([]byte, 1<<20))
	send(t, calm, make([]byte, 4000))
	go func() {
		for err := error(nil); err == nil; _, err = slow.Read(make([]byte, 2000)) {
			select {
			case <-time.After(time.Second):
			case <-slow.Done():
			}
		}
	}()
	time.Sleep(5 * time.Second)
	if h != nil {
		m.hog(hogs)
		m.feed(hogs, h)
		require.Greater(t, m.l.Endpoint().Stats().Buffered, limit*7/8) // some may have been ended
	}
	want := content(1, size)
	start := time.Now()
	send(t, a, want)
	receive(t, b, want)
	rate = float64(size) / time.Since(start).Seconds()
	time.Sleep(30 * time.Second)
	require.LessOrEqual(t, m.l.Endpoint().Stats().Buffered, limit)
	require.NoError(t, slow.Err())
	require.InDelta(t, 20<<10, slow.Stats().Held, 4<<10, "below the share of a session")
	require.NoError(t, idle.Err())
	receive(t, idle, make([]byte, 4000))
	if ended := m.l.Endpoint().Stats().EndedForMemory; h == nil || h.lean {
		require.Zero(t, ended)
	} else {
		require.Positive(t, ended)
		require.Less(t, ended, uint64(hogs), "no more than are in the way")
	}
	return rate
}

// Who holds memory without progress, of whatever kind, pays first, and from
// MaxBuffered on: an upload over a path with losses goes on beside them nearly
// as if it were alone. Nobody else pays: not an application that reads slowly,
// nor one that leaves a little unread for long.
func TestHoldersWithoutProgressPay(t *testing.T) {
	t.Parallel()
	long(t)
	const hogs, limit = 64, 4 << 20
	link := netsim.LinkConfig{Delay: 25 * time.Millisecond, Rate: 4 << 20, Queue: 1 << 20, Loss: 0.01}
	upload := func(t *testing.T, h *memoryHog) (rate float64) {
		inWorld(t, 60, clean, func(t *testing.T, w *world) {
			w.net.SetLink("10.0.0.2", "10.0.0.1", link)
			w.net.SetLink("10.0.0.1", "10.0.0.2", link)
			rate = newMemoryWorld(w, &Config{Limits: Limits{MaxBuffered: limit, Backlog: 2 * hogs}}).beside(h, hogs, 6<<20)
			t.Logf("%.0f kB/s", rate/1000)
		})
		return rate
	}
	alone := upload(t, nil)
	for _, h := range memoryHogs {
		t.Run(h.name, func(t *testing.T) { require.Greater(t, upload(t, &h), 0.7*alone) })
	}
}

// However many sessions there are, a batch of packets causes few of them to be
// looked at, and fewer to be ended; and all of them get their turn.
func TestMemoryScansAreBounded(t *testing.T) {
	inWorld(t, 62, clean, func(t *testing.T, w *world) {
		l := w.listen(&Config{Limits: Limits{MaxBuffered: 1 << 20}})
		e := l.Endpoint()
		conns := make([]Conn, 10*scanned+7)
		for i := range conns {
			conns[i].session.Inside().Held().Store(int64(i % 1000))
			conns[i].session.Inside().Entry().Conv = uint32(i)
			e.table.Add(&conns[i])
		}
		conns[7*scanned].session.Inside().Held().Store(1 << 20)
		e.shared.Load.Buffered.Store(2 << 20)
		now := e.now()
		var heavy [mostShed]*Conn
		weigh := func(times int) (n int, done bool) {
			for range times {
				require.Zero(t, n)
				n, done = e.weigh(now, &heavy)
			}
			return n, done
		}
		for range 10 {
			_, done := weigh(1)
			require.False(t, done)
			require.Zero(t, e.pressure.scan.At%scanned)
		}
		n, done := weigh(1)
		require.Zero(t, n)
		require.True(t, done)
		n, _ = weigh(8)
		require.Equal(t, 1, n)
		require.Same(t, &conns[7*scanned], heavy[0])

		for i := range conns {
			conns[i].session.Inside().Held().Store(1 << 20)
		}
		for _, want := range []int{scanned, mostShed} {
			*e.pressure.scan = *fair.NewScan(session.LeastShare)
			if want == mostShed {
				e.pressure.scan.Line = 0
			}
			n, _ = e.weigh(now, &heavy)
			require.Equal(t, want, e.pressure.scan.At)
			require.Equal(t, want == mostShed, n == mostShed)
		}
		e.shared.Load.Buffered.Store(0)
		e.initGate()
	})
}

// What waits until a peer's new address is validated counts, and no longer.
func TestDeferredPacketIsCounted(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		_, b, l := w.pair(nil, nil)
		b.mu.Lock()
		defer b.mu.Unlock()
		const size = 1200
		before := l.Endpoint().Stats().Buffered
		b.session.Inside().DeferPacket(&session.InPacket{Packet: protect.Packet{Data: make([]byte, size)}}, 1, size)
		b.session.Inside().Account()
		require.GreaterOrEqual(t, l.Endpoint().Stats().Buffered-before, size)
		b.session.Inside().DropUnreliable()
		b.session.Inside().Account()
		require.Less(t, l.Endpoint().Stats().Buffered-before, size)
	})
}

// Who reads makes progress, also when nothing arrives any more; who does not, does
// not.
func TestReadingIsProgress(t *testing.T) {
	for _, kind := range []string{"bytes", "stream"} {
		for _, reads := range []bool{false, true} {
			inWorld(t, 2, clean, func(t *testing.T, w *world) {
				a, b, l := w.pair(nil, nil)
				want := content(1, 60_000)
				var from io.Reader = b
				if kind == "stream" {
					s, r := streamPair(t, a, b, nil)
					send(t, s, want)
					from = r
				} else {
					send(t, a, want)
				}
				for at := 0; at < 30_000; at += 1000 {
					time.Sleep(time.Second)
					if reads {
						receive(t, from, want[at:at+1000])
					}
					_, err := a.Ping(context.Background()) // the peer is there
					require.NoError(t, err)
				}
				h := b.session.Inside()
				require.Greater(t, h.Held().Load(), int64(30_000))
				rank := fair.RankOf(h.Held().Load(), h.Lately(l.ep.now()), false)
				require.Equal(t, !reads, rank.Holds(4), "%s, %d of %d", kind, h.Lately(l.ep.now()), h.Held().Load())
			})
		}
	}
}

// Datagrams that wait for the cap of the rate are on the account of what waits to be
// sent.
func TestWhatWaitsForTheCapIsCounted(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, _, _ := w.pair(&Config{MaxRate: 20_000, FEC: FEC{Data: 1, Parity: 4}}, nil)
		for range recovery.MaxHeld {
			require.NoError(t, a.SendDatagram(make([]byte, 1000)))
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.session.Inside().AccountWrites()
		counted := a.ep.shared.Load.Written.Load()*session.WriteGrain - int64(a.session.Inside().Machine().Load().Memory)
		bytes := a.session.Inside().DatagramBytes()
		require.Greater(t, bytes, 10*session.WriteGrain)
		require.InEpsilon(t, bytes, counted, 0.2)
	})
}

// A session that nothing new moves over releases its spare memory after a second, and not
// before.
func TestSpareMemoryIsReleased(t *testing.T) {
	inWorld(t, 3, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&Config{KeepAlive: -1}, &Config{KeepAlive: -1})
		want := content(3, 1<<16)
		send(t, a, want)
		receive(t, b, want)
		state := func() (sent, spare bool) {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.session.Inside().Machine().WaitSend() == 0, a.session.Inside().Machine().Inspect().Send > 0
		}
		for sent := false; !sent; time.Sleep(time.Millisecond) {
			sent, _ = state()
		}
		moved := time.Now()
		for spare := true; spare; time.Sleep(time.Millisecond) {
			_, spare = state()
		}
		require.InDelta(t, time.Second, time.Since(moved), float64(50*time.Millisecond))
		time.Sleep(10 * time.Second)
		for _, c := range []*Conn{a, b} {
			c.mu.Lock()
			inside := c.session.Inside()
			held, wakeAt := inside.Machine().Inspect(), inside.WakeAt()
			_, outbox := inside.Writing()
			c.mu.Unlock()
			require.Zero(t, held.Send+held.Recv)
			require.False(t, held.Samples || outbox)
			require.Zero(t, wakeAt)
		}
	})
}

// A session that was ended for want of memory has dropped what was not read. A call that
// reads returns that, and not the end of the peer's data, which has arrived too.
func TestDroppedDataIsNoEnd(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		writeAll(t, a, make([]byte, 100_000))
		require.NoError(t, a.CloseWrite())
		time.Sleep(time.Second)
		b.mu.Lock()
		all := b.session.Waiting().All
		b.mu.Unlock()
		require.True(t, all)
		require.True(t, b.shedMemory())
		n, err := b.Read(make([]byte, 10))
		require.Zero(t, n)
		require.ErrorIs(t, err, ErrMemoryPressure)
	})
}

func hello(token uint32) []byte {
	return testenv.SegmentOf(wire.Signal{Code: wire.Hello, SN: 0, TS: token})
}

// Limits on what unknown senders and peers can cause.

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
