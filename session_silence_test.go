package kcp

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// Over a path that loses nothing no peer is lost, however much longer than PeerTimeout
// what was written waits: for the cap of the rate, or for a peer that does not read. All
// of it arrives.
func TestWhatWaitsIsNoSilence(t *testing.T) {
	data := content(1, 12_000)
	for name, tc := range map[string]struct {
		config Config
		open   func(t *testing.T, a, b *Conn) (from, to net.Conn)
		pause  time.Duration // before the peer reads
	}{
		"session": {config: Config{MaxRate: 1000}},
		"stream":  {config: Config{MaxRate: 1000}, open: ofAStream},
		"FEC":     {config: Config{MaxRate: 1000, FEC: FEC{Data: 2, Parity: 2}}},
		"TLS":     {config: Config{MaxRate: 1000, TLS: testTLS()}},
		"other peer without signals": {config: Config{MaxRate: 1000}, open: func(_ *testing.T, a, b *Conn) (net.Conn, net.Conn) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.session.Inside().Opening().Peer = opening.Legacy
			return a, b
		}},
		"zero window": {config: Config{WriteBuffer: 4096}, open: func(t *testing.T, a, b *Conn) (net.Conn, net.Conn) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.session.Inside().Machine().Configure(machine.Settings{ReceiveWindow: 2})
			return a, b
		}, pause: 30 * time.Second},
	} {
		for _, timeout := range []time.Duration{300 * time.Millisecond, time.Second, 3 * time.Second} {
			t.Run(name+", "+timeout.String(), func(t *testing.T) {
				inWorld(t, 1, clean, func(t *testing.T, w *world) {
					config := tc.config
					config.PeerTimeout, config.KeepAlive = timeout, -1
					a, b, _ := w.pair(&config, &Config{FEC: config.FEC, TLS: config.TLS})
					time.Sleep(5 * time.Second) // for the cap to have paid what came before
					from, to := net.Conn(a), net.Conn(b)
					if tc.open != nil {
						from, to = tc.open(t, a, b)
					}
					written := make(chan error)
					go func() {
						_, err := from.Write(data)
						written <- err
					}()
					time.Sleep(tc.pause)
					receive(t, to, data)
					require.NoError(t, <-written)
					time.Sleep(20 * time.Second)
					require.NoError(t, a.Err())
				})
			})
		}
	}
}

// ofAStream returns the ends of a stream.
func ofAStream(t *testing.T, a, b *Conn) (from, to net.Conn) {
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
		config Config
		begin  func(t *testing.T, a, b *Conn)
		then   func(a *Conn) // a minute after the peer has gone
	}{
		"idle":        {config: Config{KeepAlive: 2 * time.Second}},
		"bulk":        {config: Config{MaxRate: 100_000}, begin: func(_ *testing.T, a, b *Conn) { readAll(b); go endless(a) }},
		"capped":      {config: Config{MaxRate: 1000}, begin: func(_ *testing.T, a, b *Conn) { readAll(b); go endless(a) }},
		"stream":      {config: Config{KeepAlive: time.Second}, begin: func(t *testing.T, a, b *Conn) { s, _ := ofAStream(t, a, b); go endless(s) }},
		"zero window": {begin: func(_ *testing.T, a, b *Conn) { go endless(a); time.Sleep(20 * time.Second) }},
		"one write":   {config: Config{KeepAlive: -1}, then: func(a *Conn) { _, _ = a.Write([]byte("x")) }},
		"request":     {config: Config{KeepAlive: -1}, then: func(a *Conn) { _ = a.CloseWrite() }},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 2, clean, func(t *testing.T, w *world) {
				tc.config.PeerTimeout = 10 * time.Second
				a, b, _ := w.pair(&tc.config, &Config{KeepAlive: -1, ReceiveWindow: 128})
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
				var lost *PeerLostError
				require.ErrorAs(t, a.Err(), &lost)
				require.InDelta(t, 10, time.Since(first).Seconds(), 0.3)
				require.Greater(t, lost.Silence, 10*time.Second-300*time.Millisecond)
			})
		})
	}
}

// freeze does what it is for the process of c to be frozen for d, as by SIGSTOP: its
// clock goes on, and nothing of what was sent meanwhile was read. c is the endpoint's
// only session.
func freeze(c *Conn, d time.Duration) {
	synctest.Wait()
	c.mu.Lock()
	e := c.ep
	e.wakes.Remove(c)
	e.shared.Epoch = e.shared.Epoch.Add(-d)
	e.wakes.Init(1, e.shared.Epoch, (*Conn).wakeIndex, (*Conn).wakeHash, nil, (*Conn).onWake, nil)
	c.mu.Unlock()
	c.onWake()
}

// A process that was frozen takes none of that time for silence of its peer. If the
// peer is there, the session goes on. If not, it is lost PeerTimeout after the process
// goes on.
func TestFrozenProcess(t *testing.T) {
	for name, tc := range map[string]struct {
		config Config
		send   func(a *Conn)
		gone   bool
	}{
		"capped":             {config: Config{MaxRate: 1000}, send: func(a *Conn) { _, _ = a.Write(content(1, 10_000)) }},
		"unacknowledged":     {send: func(a *Conn) { _, _ = a.Write(content(1, 10_000)) }},
		"stalls":             {config: Config{PeerTimeout: -1, StallTimeout: 10 * time.Second}, send: func(a *Conn) { _, _ = a.Write(content(1, 10_000)) }},
		"idle":               {config: Config{PeerTimeout: -1, IdleTimeout: 10 * time.Second}, send: func(a *Conn) { _, _ = a.Write(content(1, 10_000)) }},
		"after a keep-alive": {config: Config{KeepAlive: 500 * time.Millisecond}, send: func(*Conn) { time.Sleep(505 * time.Millisecond) }},
		"peer is gone":       {send: func(a *Conn) { _, _ = a.Write(content(1, 10_000)) }, gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 3, clean, func(t *testing.T, w *world) {
				if tc.config.PeerTimeout == 0 {
					tc.config.PeerTimeout = 5 * time.Second
				}
				a, b, _ := w.pair(&tc.config, nil)
				time.Sleep(3 * time.Second)
				tc.send(a)
				if tc.gone {
					w.net.Cut("10.0.0.1", "10.0.0.2")
				}
				time.Sleep(time.Millisecond)
				begin := time.Now()
				freeze(a, time.Hour)
				if tc.gone {
					<-a.Done()
					var lost *PeerLostError
					require.ErrorAs(t, a.Err(), &lost)
					require.InDelta(t, 5, time.Since(begin).Seconds(), 0.3)
					return
				}
				if name != "after a keep-alive" {
					receive(t, b, content(1, 10_000))
				}
				time.Sleep(2 * time.Second)
				require.NoError(t, a.Err())
				bothWays(t, a, b, []byte("still"), []byte("here"))
			})
		})
	}
}

// Sessions that have nothing to do that may be sent sleep.

// counted is an endpoint whose wake-ups of sessions are counted.
type counted struct {
	*Endpoint
	wakes atomic.Int64
}

// counts opens an endpoint at an address.
func (w *world) counts(addr string, config *Config) *counted {
	w.t.Helper()
	pc, err := w.net.Listen(addr)
	require.NoError(w.t, err)
	e := &counted{Endpoint: makeEndpoint(config, false, w.socket(pc))}
	e.Endpoint.wakes.Init(1, e.shared.Epoch, (*Conn).wakeIndex, (*Conn).wakeHash, nil, func(c *Conn) {
		e.wakes.Add(1)
		c.onWake()
	}, udp.Delayed)
	e.start()
	w.t.Cleanup(func() { _, _ = e.Close(), pc.Close() })
	return e
}

// silentPeers is the addresses of those that open sessions in the name of others.
const silentPeers = 50

// flood opens sessions by packets from as many addresses.
func (w *world) flood(packet func(conv uint32) []byte) {
	for i := range uint32(silentPeers) {
		w.net.Inject(floodAddr(int(i)), netip.MustParseAddrPort("10.0.0.1:4000"), packet(1000+i))
		synctest.Wait()
	}
}

// answersMore has each session that is accepted send back what comes, and more.
func answersMore(t *testing.T, l *Listener, more int) {
	go func() {
		for {
			c, err := l.AcceptKCP(context.Background())
			if err != nil {
				return
			}
			go func() {
				b := make([]byte, 1000)
				for n, err := c.Read(b); err == nil; n, err = c.Read(b) {
					_, _ = c.Write(append(b[:n:n], content(1, more)...))
				}
			}()
		}
	}()
}

// A session whose peer's address is not validated wakes a few times in all while nothing
// comes from there, whatever waits for it, and ends after seconds. Sessions in other
// states that may send nothing do not wake for more than what they send.
func TestSilentSessionsSleep(t *testing.T) {
	hello := func(conv uint32) []byte {
		return packetOf(conv, segment(wire.CmdWask, byte(wire.Hello), conv, 0, 0, ""), segment(wire.CmdWins, byte(wire.Info), session.InfoSignal().TS, session.InfoSignal().SN, 0, ""))
	}
	data := func(conv uint32) []byte { return packetOf(conv, push(0, 0, "x")) }
	full := func(conv uint32) []byte { return packetOf(conv, push(0, 0, string(content(1, 500)))) }
	for name, tc := range map[string]struct {
		config Config
		more   int // bytes that the application writes; negative: it does not accept
		Packet func(conv uint32) []byte
	}{
		"data, not accepted":         {Packet: data, more: -1},
		"data, echoed":               {Packet: data},
		"data, echoed, no time-outs": {Packet: data, config: Config{PeerTimeout: -1, KeepAlive: -1}},
		"data, much more":            {Packet: data, more: 100_000},
		"full, much more":            {Packet: full, more: 100_000},
		"full, much more, no delay":  {Packet: full, more: 100_000, config: LowLatency()},
		"full, much more, classic":   {Packet: full, more: 100_000, config: Classic()},
		"full, much more, with FEC":  {Packet: full, more: 100_000, config: Config{FEC: FEC{Data: 10, Parity: 3}}},
		"full, much more, capped":    {Packet: full, more: 100_000, config: Config{MaxRate: 1 << 20}},
		"window of zero":             {Packet: func(conv uint32) []byte { return packetOf(conv, zeroWindow(push(0, 0, string(content(1, 500))))) }, more: 10_000},
		"HELLO":                      {Packet: hello, more: -1},
		"HELLO, cookies":             {Packet: hello, more: -1, config: Config{AddressValidation: ValidateAlways}},
		"HELLO and data":             {Packet: func(conv uint32) []byte { return append(hello(conv), data(conv)...) }, more: -1},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 2, netsim.LinkConfig{}, func(t *testing.T, w *world) {
				e := w.counts("10.0.0.1:4000", &tc.config)
				l, err := e.Listen()
				require.NoError(t, err)
				if tc.more >= 0 {
					answersMore(t, l, tc.more)
				}
				w.flood(tc.Packet)
				time.Sleep(10 * time.Minute)
				s := e.Stats()
				t.Logf("%d wake-ups, %d packets", e.wakes.Load(), s.PacketsSent)
				require.LessOrEqual(t, e.wakes.Load(), int64(s.PacketsSent)+8*silentPeers)
				require.Zero(t, s.Sessions)
				require.Less(t, s.Buffered, silentPeers<<10) // of those that were not accepted
				require.LessOrEqual(t, s.BytesSent, 3*s.BytesReceived)
			})
		})
	}
}

// zeroWindow sets the window of a segment to 0.
func zeroWindow(b []byte) []byte {
	b[6], b[7] = 0, 0
	return b
}

// The same for sessions with peers that are there: what they wait for is a packet, or a
// call. So they wake as often as they send, and a few times more.
func TestIdleSessionsSleep(t *testing.T) {
	long := Config{PeerTimeout: -1, KeepAlive: -1}
	for name, tc := range map[string]struct {
		config Config
		begin  func(t *testing.T, w *world, e *counted, a, b *Conn)
	}{
		"idle":              {begin: func(*testing.T, *world, *counted, *Conn, *Conn) {}},
		"path without peer": {begin: func(t *testing.T, w *world, e *counted, a, b *Conn) { w.deaf() }},
		"data, path without peer": {begin: func(t *testing.T, w *world, e *counted, a, b *Conn) {
			w.deaf()
			_, _ = a.TryWrite(content(1, 20_000))
		}},
		"window of zero": {begin: func(t *testing.T, w *world, e *counted, a, b *Conn) {
			_ = a.SetWriteDeadline(time.Now().Add(time.Minute))
			_, _ = a.Write(content(1, 10<<20))
		}},
		"window of zero, streams": {begin: func(t *testing.T, w *world, e *counted, a, b *Conn) {
			s := openStream(t, a, nil)
			_ = s.SetWriteDeadline(time.Now().Add(time.Minute))
			_, _ = s.Write(content(1, 10<<20))
		}},
		"capped": {config: Config{MaxRate: 10_000}, begin: func(t *testing.T, w *world, e *counted, a, b *Conn) {
			_, _ = a.TryWrite(content(1, 1000))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 2, clean, func(t *testing.T, w *world) {
				l := w.listen(&long)
				config := tc.config
				config.PeerTimeout, config.KeepAlive = -1, -1
				e := w.counts("10.0.0.2:5000", &config)
				a, err := e.Dial(context.Background(), udpAddr(serverAddr), nil)
				require.NoError(t, err)
				writeAll(t, a, []byte("x"))
				b := accepted(t, l)
				_, err = io.ReadFull(b, make([]byte, 1))
				require.NoError(t, err)
				tc.begin(t, w, e, a, b)
				time.Sleep(time.Minute) // what was under way is done
				before, sent := e.wakes.Load(), e.Stats().PacketsSent
				time.Sleep(time.Hour)
				more := int64(e.Stats().PacketsSent - sent)
				require.LessOrEqual(t, e.wakes.Load()-before, 3*more+10, "%d packets", more)
			})
		})
	}
}

// What a session itself takes is on the account while its peer's address is not
// validated, to within a kilobyte. If it is too much, such sessions end, and others do
// not.
func TestHalfOpenSessionsAreCounted(t *testing.T) {
	inWorld(t, 2, netsim.LinkConfig{}, func(t *testing.T, w *world) {
		config := Config{Limits: Limits{MaxHalfOpen: 3000, MaxSessionsPerAddress: 5000, MaxBuffered: 1 << 23, Backlog: 5000}}
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
