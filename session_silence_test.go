package kcp

import (
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/internal/opening"
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
			a.hs.Peer = opening.Legacy
			return a, b
		}},
		"zero window": {config: Config{WriteBuffer: 4096}, open: func(t *testing.T, a, b *Conn) (net.Conn, net.Conn) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.kcp.configure(machineSettings{receiveWindow: 2})
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
		then   func(a *Conn)
	}{
		"idle":        {config: Config{KeepAlive: 2 * time.Second}},
		"bulk":        {begin: func(_ *testing.T, a, _ *Conn) { go endless(a) }},
		"capped":      {config: Config{MaxRate: 1000}, begin: func(_ *testing.T, a, _ *Conn) { go endless(a) }},
		"stream":      {begin: func(t *testing.T, a, b *Conn) { s, _ := ofAStream(t, a, b); go endless(s) }, config: Config{KeepAlive: time.Second}},
		"zero window": {begin: func(_ *testing.T, a, b *Conn) { go endless(a); time.Sleep(20 * time.Second) }},
		"one write":   {config: Config{KeepAlive: -1}, then: func(a *Conn) { _, _ = a.Write([]byte("x")) }},
		"request":     {config: Config{KeepAlive: -1}, then: func(a *Conn) { _ = a.CloseWrite() }},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 2, clean, func(t *testing.T, w *world) {
				tc.config.PeerTimeout = 10 * time.Second
				a, b, _ := w.pair(&tc.config, &Config{KeepAlive: -1})
				if tc.begin != nil {
					tc.begin(t, a, b)
				}
				if name == "bulk" || name == "capped" {
					go func() {
						for buf := make([]byte, 1<<16); ; {
							if _, err := b.Read(buf); err != nil {
								return
							}
						}
					}()
				}
				time.Sleep(3 * time.Second)
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
	e.epoch = e.epoch.Add(-d)
	e.wakes.Init(1, e.epoch, (*Conn).wakeIndex, (*Conn).wakeHash, nil, (*Conn).onWake, nil)
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
