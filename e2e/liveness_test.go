package e2e

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/incast"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// A peer without signals that was restarted, and answers as one that has never
// heard of the session, ends it; packets that were merely overtaken do not.
func TestRestartedLegacyPeer(t *testing.T) {
	inWorld(t, 22, clean, func(t *testing.T, w *world) {
		e, pc := w.endpoint("10.0.0.2:5000", &kcp.Config{DialTimeout: -1})
		c := w.dial(e) // nobody is there
		says := func(unas ...uint32) {
			for _, una := range unas {
				h := header{conv: c.Conv(), cmd: cmdWins, wnd: 128, una: una}
				w.net.Inject(acceptorAddr, pc.AddrPort(), h.append(nil))
				time.Sleep(time.Second)
			}
		}
		w.say(c, "x")
		time.Sleep(time.Second)
		says(1, 1, 1, 1)
		for range 8 { // overtaken ones among the others
			says(0, 1)
		}
		require.Equal(t, 1, e.Stats().Sessions)
		says(0, 0, 0, 0, 0)
		require.Equal(t, 1, e.Stats().Sessions)
		says(0)
		require.ErrorIs(t, end(c), kcp.ErrReset)
		require.True(t, c.Peer().Legacy)
	})
}

const oneWay = 20 * time.Millisecond

// near checks that a round-trip time is that of the path.
func near(t *testing.T, rtt time.Duration) {
	t.Helper()
	require.InDelta(t, float64(2*oneWay), float64(rtt), float64(2*time.Millisecond))
}

// pings counts the PINGs to the server.
func (w *world) pings() *atomic.Int32 {
	n := new(atomic.Int32)
	w.net.SetFilter(func(_, to netip.AddrPort, p []byte) bool {
		if to == acceptorAddr {
			n.Add(int32(signals(p, sigPing)))
		}
		return true
	})
	return n
}

// In a session that sends datagrams only, both ends know the round-trip time. It
// costs one PING a second, and nothing to a session that sends none.
func TestRTTWithDatagramsOnly(t *testing.T) {
	inWorld(t, 2, netsim.LinkConfig{Delay: oneWay}, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		pings := w.pings()
		time.Sleep(20 * time.Second)
		require.Zero(t, pings.Load())
		for range 60 * 10 {
			require.NoError(t, a.SendDatagram([]byte("I am here")))
			require.NoError(t, b.SendDatagram([]byte("and I there")))
			time.Sleep(time.Second / 60)
		}
		for _, c := range []*kcp.Conn{a, b} {
			s := c.Stats()
			near(t, s.RTT)
			near(t, s.RTTMin)
			require.Less(t, s.RTTAge, 1200*time.Millisecond)
		}
		require.InDelta(t, 10, pings.Load(), 2)
	})
}

// Data whose ACKs are delayed, 20 times a second. An application that calls Stats learns
// the round-trip time of the path, for a PING a second. Otherwise there is no PING.
func TestRTTBesideData(t *testing.T) {
	for _, jitter := range []time.Duration{0, 8 * time.Millisecond} {
		inWorld(t, 2, netsim.LinkConfig{Delay: oneWay, Jitter: jitter}, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, nil)
			go io.Copy(io.Discard, b)
			pings := w.pings()
			write := func(seconds int) {
				for range 20 * seconds {
					w.say(a, "state of the world")
					time.Sleep(50 * time.Millisecond)
				}
			}
			write(20)
			a.Stats()
			write(20)
			require.Zero(t, pings.Load(), "Stats was called once")
			for range 22 {
				write(1)
				a.Stats()
			}
			require.InDelta(t, 20, pings.Load(), 3)
			s := a.Stats()
			if jitter == 0 {
				near(t, s.RTT)
				require.Less(t, s.Jitter, time.Millisecond)
			} else {
				require.InDelta(t, float64(2*oneWay+jitter), float64(s.RTT), float64(jitter))
				require.InDelta(t, float64(jitter/2), float64(s.Jitter), float64(jitter/2-time.Millisecond))
			}
			require.Less(t, s.RTTAge, 1200*time.Millisecond)
			pings.Store(0)
			write(20)
			require.InDelta(t, 10, pings.Load(), 2, "Stats was not called for longer than ten seconds")
		})
	}
}

// Ping measures without data, and repeats what is lost.
func TestPing(t *testing.T) {
	inWorld(t, 2, netsim.LinkConfig{Delay: oneWay}, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		time.Sleep(time.Second)
		for _, c := range []*kcp.Conn{a, b} {
			rtt, err := c.Ping(context.Background())
			require.NoError(t, err)
			near(t, rtt)
			require.Zero(t, c.Stats().RTTAge)
		}
		w.deaf()
		w.after(3*time.Second, w.hearing)
		start := time.Now()
		rtt, err := a.Ping(context.Background())
		require.NoError(t, err)
		near(t, rtt)
		require.Greater(t, time.Since(start), 3*time.Second)
		w.deaf()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err = a.Ping(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		w.hearing()
		failed := make(chan error, 1)
		go func() {
			_, err := a.Ping(context.Background())
			failed <- err
		}()
		require.NoError(t, a.Abort(0, ""))
		if err := <-failed; err != nil { // it may have been answered
			require.ErrorIs(t, err, net.ErrClosed)
		}
		_, err = a.Ping(context.Background())
		require.ErrorIs(t, err, net.ErrClosed)
	})
}

// A peer without signals that only sends, and seldom, keeps its session, though nothing
// validates its address: it answers what it takes for a window probe. Packets may be
// lost. Once it is gone, its session ends by the peer time-out.
func TestLegacyPeerThatOnlySends(t *testing.T) {
	for _, loss := range []float64{0, 0.1} {
		for _, config := range []kcp.Config{{}, {PeerTimeout: 10 * time.Minute, KeepAlive: -1}, {FEC: kcp.FEC{Data: 3, Parity: 1}}} {
			inWorld(t, 3, netsim.LinkConfig{Delay: 50 * time.Millisecond}, func(t *testing.T, w *world) {
				l := w.listen(&config)
				p := newLegacyPeer(w, "10.0.0.9:9", l.Addr(), config.FEC != kcp.FEC{})
				p.write([]byte("first"))
				c := accepted(t, l)
				time.Sleep(time.Minute)
				w.net.SetLink("", "", netsim.LinkConfig{Delay: 50 * time.Millisecond, Loss: loss})
				p.write([]byte("first"))
				for range some(11, 5) {
					w.hear(c, "first")
					require.Equal(t, 1, l.Endpoint().Stats().HalfOpen)
					time.Sleep(time.Minute)
					p.write([]byte("first"))
				}
				w.deaf()
				<-c.Done()
				require.LessOrEqual(t, isLost(t, c.Err()).Silence, max(config.PeerTimeout, 30*time.Second))
				require.Zero(t, l.Endpoint().Stats().Sessions)
			})
		}
	}
}

// ofAStream returns the ends of a stream.
func ofAStream(t *testing.T, a, b *kcp.Conn) (from, to net.Conn) {
	s, r := streamPair(t, a, b, nil)
	return s, r
}

// A peer that is gone is lost PeerTimeout after the first packet that it should have
// answered, whatever this end is about to do then.
func TestGonePeerIsLostInTime(t *testing.T) {
	endless := func(c net.Conn) {
		for b := make([]byte, 10_000); ; {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}
	for name, tc := range map[string]struct {
		config kcp.Config
		begin  func(t *testing.T, a, b *kcp.Conn)
		then   func(a *kcp.Conn) // a minute after the peer has gone
	}{
		"idle":        {config: kcp.Config{KeepAlive: 2 * time.Second}},
		"bulk":        {config: kcp.Config{MaxRate: 100_000}, begin: func(_ *testing.T, a, b *kcp.Conn) { readAll(b); go endless(a) }},
		"capped":      {config: kcp.Config{MaxRate: 1000}, begin: func(_ *testing.T, a, b *kcp.Conn) { readAll(b); go endless(a) }},
		"stream":      {config: kcp.Config{KeepAlive: time.Second}, begin: func(t *testing.T, a, b *kcp.Conn) { s, _ := ofAStream(t, a, b); go endless(s) }},
		"zero window": {begin: func(_ *testing.T, a, b *kcp.Conn) { go endless(a); time.Sleep(20 * time.Second) }},
		"one write":   {config: kcp.Config{KeepAlive: -1}, then: func(a *kcp.Conn) { _, _ = a.Write([]byte("x")) }},
		"request":     {config: kcp.Config{KeepAlive: -1}, then: func(a *kcp.Conn) { _ = a.CloseWrite() }},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 2, clean, func(t *testing.T, w *world) {
				tc.config.PeerTimeout = 10 * time.Second
				a, b, _ := w.pair(&tc.config, &kcp.Config{KeepAlive: -1, ReceiveWindow: 128})
				if tc.begin != nil {
					tc.begin(t, a, b)
				}
				time.Sleep(3300 * time.Millisecond) // not just before a packet that the cap has held
				client := netip.MustParseAddrPort(a.LocalAddr().String())
				cut := time.Now()
				var first time.Time
				w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool {
					if from == client && first.IsZero() && time.Since(cut) > 50*time.Millisecond {
						first = time.Now() // what is not an answer
					}
					return false
				})
				if tc.then != nil {
					time.Sleep(time.Minute)
					first = time.Now()
					tc.then(a)
				}
				<-a.Done()
				var lost *kcp.PeerLostError
				require.ErrorAs(t, a.Err(), &lost)
				require.InDelta(t, 10, time.Since(first).Seconds(), 0.3)
				require.Greater(t, lost.Silence, 10*time.Second-300*time.Millisecond)
			})
		})
	}
}

// What a session itself takes is on the account while its peer's address is not
// validated, to within a kilobyte. If it is too much, such sessions end, and others do
// not.
func TestHalfOpenSessionsAreCounted(t *testing.T) {
	inWorld(t, 2, netsim.LinkConfig{}, func(t *testing.T, w *world) {
		config := kcp.Config{Limits: kcp.Limits{MaxHalfOpen: 3000, MaxSessionsPerAddress: 5000, MaxBuffered: 1 << 23, Backlog: 5000}}
		l := w.listen(&config)
		e, _ := w.endpoint("10.0.0.2:5000", nil)
		c := w.dial(e)
		writeAll(t, c, content(1, 60_000))
		s := accepted(t, l)
		require.NoError(t, c.Flush(context.Background()))
		at := netip.MustParseAddrPort("10.0.0.1:4000")
		open := func(from, to uint32) {
			for i := from; i < to; i++ {
				w.net.Inject(floodAddr(int(i)), at, packetOf(1000+i, push(0, 0, "x")))
				if i%100 == 0 {
					synctest.Wait()
				}
			}
			synctest.Wait()
		}
		before, held := memoryInUse(), l.Endpoint().Stats().Buffered
		open(0, 1000)
		require.Equal(t, 1000, l.Endpoint().Stats().HalfOpen)
		if !raceEnabled {
			require.Less(t, memoryInUse()-before-int64(l.Endpoint().Stats().Buffered-held), int64(1000<<10))
		}
		open(1000, 3000)
		time.Sleep(4 * time.Second)
		for range 300 { // a batch ends a few
			open(0, 1)
			time.Sleep(10 * time.Millisecond)
		}
		require.LessOrEqual(t, l.Endpoint().Stats().Buffered, config.Limits.MaxBuffered)
		require.Less(t, l.Endpoint().Stats().HalfOpen, 1500)
		require.NoError(t, s.Err())
		receive(t, s, content(1, 60_000))
	})
}

// busySocket is a socket whose buffer holds something for some time, from when it is
// first looked at.
type busySocket struct {
	*netsim.PacketConn
	since atomic.Int64 // Unix ns; 0: it was not looked at
	lasts atomic.Int64 // ns; 0: it holds nothing
}

func (s *busySocket) ReadQueue(q *udp.Queue) bool {
	*q = udp.Queue{Limit: 1 << 20}
	if now := time.Now().UnixNano(); s.lasts.Load() > 0 {
		s.since.CompareAndSwap(0, now)
		if now-s.since.Load() < s.lasts.Load() {
			q.Used = incast.BufferBytes(1500)
		}
	}
	return true
}

// A segment that is lost is sent again soon after what was in the buffer was read,
// though no other timer of the session fires. If it is never read, time-outs
// wait a second.
func TestHeldTimeoutLooksAgain(t *testing.T) {
	t.Parallel()
	lasts := []time.Duration{0, 3 * time.Millisecond, time.Hour}
	times := make([]time.Duration, len(lasts))
	for i := range times {
		inWorld(t, 1, netsim.LinkConfig{Delay: 10 * time.Millisecond}, func(t *testing.T, w *world) {
			s := new(busySocket)
			l, _ := w.serverOn(nil, func(pc *netsim.PacketConn) net.PacketConn {
				s.PacketConn = pc
				return s
			})
			ce, _ := w.endpoint("10.0.0.2:0", nil)
			c := w.dial(ce)
			w.say(c, "a")
			b := accepted(t, l)
			w.hear(b, "a")
			for range 20 {
				w.say(b, "x")
				w.hear(c, "x")
			}
			time.Sleep(1500 * time.Millisecond)
			s.lasts.Store(int64(lasts[i]))
			drop := 2 // the tail loss probe, too
			w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool {
				if from.String() == serverAddr && drop > 0 {
					drop--
					return false
				}
				return true
			})
			start := time.Now()
			w.say(b, "lost")
			w.hear(c, "lost")
			times[i] = time.Since(start)
		})
	}
	require.Less(t, times[1], times[0]+10*time.Millisecond, "with nothing in the buffer it took %v", times[0])
	require.InDelta(t, time.Second, times[2]-times[0], float64(100*time.Millisecond))
}

// filtering is what a NAT lets in (RFC 4787 §5).
type filtering int

const (
	independentFiltering filtering = iota // whatever comes to a mapping
	addressFiltering                      // from addresses that something was sent to
	portFiltering                         // from addresses and ports that something was sent to
)

var allFiltering = []filtering{independentFiltering, addressFiltering, portFiltering}

// natNet has hosts in networks behind NATs (RFC 4787). What goes from one network to
// another has the address of the sender's mapping in front of its bytes.
type natNet struct {
	mu       sync.Mutex // guards the fields below, and those of its hosts
	mappings map[netip.AddrPort]*natHost
	hosts    []*natHost
}

// natHost is the socket of a host behind a NAT, which has no mapping before the first
// packet leaves.
type natHost struct {
	*netsim.PacketConn
	net    *natNet
	lan    string         // the hosts of one network reach each other
	public netip.AddrPort // the mapping
	kind   filtering
	sent   map[netip.AddrPort]bool
}

// host adds a host to a network. It has one address there, and one outside.
func (n *natNet) host(pc *netsim.PacketConn, lan, public string, kind filtering) *natHost {
	h := &natHost{
		PacketConn: pc, net: n, lan: lan, public: netip.MustParseAddrPort(public), kind: kind,
		sent: make(map[netip.AddrPort]bool),
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mappings == nil {
		n.mappings = make(map[netip.AddrPort]*natHost)
	}
	n.mappings[h.public] = h
	n.hosts = append(n.hosts, h)
	return h
}

// passes reports whether the NAT lets a packet in.
func (h *natHost) passes(from netip.AddrPort) bool {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	ok := h.sent[from]
	for to := range h.sent {
		ok = ok || h.kind == independentFiltering || h.kind == addressFiltering && to.Addr() == from.Addr()
	}
	return ok
}

func (h *natHost) ReadFrom(b []byte) (int, net.Addr, error) {
	size, from, err := h.ReadFromAddrPort(b)
	if err != nil {
		return 0, nil, err
	}
	return size, net.UDPAddrFromAddrPort(from), nil
}

func (h *natHost) ReadFromAddrPort(b []byte) (int, netip.AddrPort, error) {
	packet := make([]byte, 1<<16)
	for {
		size, from, err := h.PacketConn.ReadFromAddrPort(packet)
		if err != nil {
			return 0, from, err
		}
		head := int(packet[0])
		if head > 0 {
			if from.UnmarshalBinary(packet[1:1+head]) != nil || !h.passes(from) {
				continue
			}
		}
		return copy(b, packet[1+head:size]), from, nil
	}
}

func (h *natHost) WriteTo(b []byte, to net.Addr) (int, error) {
	return h.WriteToAddrPort(b, to.(*net.UDPAddr).AddrPort())
}

func (h *natHost) WriteToAddrPort(b []byte, to netip.AddrPort) (int, error) {
	packet, at := h.route(to)
	if at.IsValid() {
		if _, err := h.PacketConn.WriteToAddrPort(append(packet, b...), at); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// route returns what goes in front of a packet, and the host that it goes to.
func (h *natHost) route(to netip.AddrPort) (head []byte, at netip.AddrPort) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	for _, other := range h.net.hosts {
		if other.lan == h.lan && other.AddrPort() == to {
			return []byte{0}, to
		}
	}
	other := h.net.mappings[to]
	if other == nil {
		return nil, at
	}
	h.sent[to] = true
	if other.lan == h.lan {
		return nil, at // no hairpinning (RFC 4787 §6)
	}
	from, _ := h.public.MarshalBinary()
	return append([]byte{byte(len(from))}, from...), other.AddrPort()
}
