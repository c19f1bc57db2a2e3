package kcp

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/streams"
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
		for _, s := range signalsOf(p) {
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
		m.net.Inject(floodAddr(i), m.to, packetOf(uint32(1000+i), hello(9), bytesOf(session.InfoSignal())))
	}
	m.settle()
	for i := range n {
		m.net.Inject(floodAddr(i), m.to, packetOf(uint32(1000+i), bytesOf(wire.Signal{Code: wire.Confirm, SN: m.tokens[floodAddr(i)], TS: 9})))
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
		e := l.ep
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
