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
		e, _ := w.endpoint("10.0.0.2:5000", &kcp.Config{DialTimeout: -1})
		_, legacy := w.endpoint(serverAddr, nil) // stays silent: there is no listener
		w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool { return from != legacy.AddrPort() })
		c, err := e.Dial(context.Background(), legacy.LocalAddr())
		require.NoError(t, err)
		here := netip.MustParseAddrPort("10.0.0.2:5000")
		says := func(una seq) {
			b := make([]byte, headerSize)
			h := header{conv: c.Conv(), cmd: cmdWins, wnd: 128, una: una}
			h.encode(b)
			w.net.Inject(legacy.AddrPort(), here, b)
			time.Sleep(time.Second)
		}
		_, err = c.Write([]byte("x"))
		require.NoError(t, err)
		time.Sleep(time.Second)
		for range 4 {
			says(1)
		}
		for range 8 { // overtaken ones among the others
			says(0)
			says(1)
		}
		require.Equal(t, 1, e.Stats().Sessions)
		for range 5 {
			says(0)
		}
		require.Equal(t, 1, e.Stats().Sessions)
		says(0)
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, kcp.ErrReset)
		require.True(t, c.Peer().Legacy)
	})
}

const oneWay = 20 * time.Millisecond

// near checks that a round-trip time is that of the path.
func near(t *testing.T, rtt time.Duration) {
	t.Helper()
	require.InDelta(t, float64(2*oneWay), float64(rtt), float64(2*time.Millisecond))
}

// The handshake shows the dialling end its round-trip time, before any data.
func TestRTTOfTheHandshake(t *testing.T) {
	inWorld(t, 2, netsim.LinkConfig{Delay: oneWay}, func(t *testing.T, w *world) {
		w.listen(nil)
		e, _ := w.endpoint("10.0.0.2:0", nil)
		a := w.dial(e)
		s := a.Stats()
		near(t, s.RTT)
		near(t, s.RTTMin)
		require.Zero(t, s.RTTVar, "the time-outs of data do not depend on it")
		time.Sleep(time.Second)
		require.GreaterOrEqual(t, a.Stats().RTTAge, time.Second-time.Millisecond)
		require.LessOrEqual(t, a.Stats().RTTAge, time.Second+2*oneWay)
	})
}

// In a session that sends datagrams only, both ends know the round-trip time. It
// costs one PING a second, and nothing to a session that sends none.
func TestRTTWithDatagramsOnly(t *testing.T) {
	inWorld(t, 2, netsim.LinkConfig{Delay: oneWay}, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		pings := 0
		w.net.SetFilter(func(_, to netip.AddrPort, p []byte) bool {
			if to == acceptorAddr && len(p) >= headerSize {
				h := decodeHeader(p)
				if s, ok := h.signal(); ok && s.code == sigPing {
					pings++
				}
			}
			return true
		})
		time.Sleep(20 * time.Second)
		require.Zero(t, pings)
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
		require.InDelta(t, 10, pings, 2)
	})
}

// Data whose ACKs are delayed, 20 times a second. An application that calls Stats learns
// the round-trip time of the path, for a PING a second. Otherwise there is no PING.
func TestRTTBesideData(t *testing.T) {
	for _, jitter := range []time.Duration{0, 8 * time.Millisecond} {
		inWorld(t, 2, netsim.LinkConfig{Delay: oneWay, Jitter: jitter}, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, nil)
			go io.Copy(io.Discard, b)
			var pings atomic.Int32
			w.net.SetFilter(func(_, to netip.AddrPort, p []byte) bool {
				for ; to == acceptorAddr && len(p) >= headerSize; p = p[min(len(p), headerSize+int(decodeHeader(p).len)):] {
					h := decodeHeader(p)
					if s, ok := h.signal(); ok && s.code == sigPing {
						pings.Add(1)
					}
				}
				return true
			})
			write := func(seconds int) {
				for range 20 * seconds {
					_, err := a.Write([]byte("state of the world"))
					require.NoError(t, err)
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

// RemoteUnread tells the writer how far the reader is behind.
func TestRemoteUnread(t *testing.T) {
	inWorld(t, 2, netsim.LinkConfig{Delay: oneWay}, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&kcp.Config{MessageMode: true}, &kcp.Config{MessageMode: true})
		for n := 1; n <= 300; n++ {
			require.NoError(t, a.WriteMessage([]byte{1}))
		}
		time.Sleep(time.Second)
		require.Equal(t, 300, a.Stats().RemoteUnread)
		for range 300 {
			_, err := b.ReadMessage(make([]byte, 10))
			require.NoError(t, err)
		}
		require.NoError(t, a.WriteMessage([]byte{1}))
		time.Sleep(time.Second)
		require.Equal(t, 1, a.Stats().RemoteUnread)
	})
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
		time.AfterFunc(3*time.Second, func() { w.net.SetFilter(nil) })
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
		w.net.SetFilter(nil)
		failed := make(chan error, 1)
		go func() {
			_, err := a.Ping(context.Background())
			failed <- err
		}()
		require.NoError(t, a.Abort())
		if err := <-failed; err != nil { // it may have been answered
			require.ErrorIs(t, err, net.ErrClosed)
		}
		_, err = a.Ping(context.Background())
		require.ErrorIs(t, err, net.ErrClosed)
	})
}
