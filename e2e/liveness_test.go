package e2e

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arqnet/kcp"
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
