package docs

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
	"github.com/arqnet/kcp/stats"
)

// slowest returns what has limited c most in the time d, and its share of that.
func slowest(c *kcp.Conn, d time.Duration) (stats.Limit, float64) {
	before := c.Stats().Limited
	time.Sleep(d)
	most, times := stats.LimitApplication, c.Stats().Limited
	for i := range times {
		times[i] -= before[i]
		if times[i] > times[most] {
			most = stats.Limit(i)
		}
	}
	return most, times[most].Seconds() / d.Seconds()
}

// What slow.md says of the default window: over a path that takes more, it is the peer's
// window that limits, at 2048 segments a round trip. With a reader that does not read it
// is that one.
func TestSlowPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := netsim.NewNetwork(1, netsim.LinkConfig{Delay: 50 * time.Millisecond})
		endpoint := func(addr string) *kcp.Endpoint {
			pc, err := network.Listen(addr)
			require.NoError(t, err)
			e, err := kcp.NewEndpoint(pc, nil)
			require.NoError(t, err)
			t.Cleanup(func() { _, _ = e.Close(), pc.Close() })
			return e
		}
		server, client := endpoint("10.0.0.1:4000"), endpoint("10.0.0.2:5000")
		l, err := server.Listen()
		require.NoError(t, err)
		a, err := client.Dial(t.Context(), server.LocalAddr())
		require.NoError(t, err)
		written := make(chan error, 1)
		go func() {
			for p := make([]byte, 1<<20); ; {
				if _, err := a.Write(p); err != nil {
					written <- err
					return
				}
			}
		}()
		b, err := l.AcceptKCP(t.Context())
		require.NoError(t, err)
		most, share := slowest(b, 10*time.Second)
		require.Equal(t, stats.LimitReader, most)
		require.Greater(t, share, 0.9)

		read := make(chan int64, 1)
		go func() {
			n, _ := io.Copy(io.Discard, b)
			read <- n
		}()
		time.Sleep(5 * time.Second)
		before := b.Stats().BytesReceived
		most, share = slowest(a, 10*time.Second)
		require.Equal(t, stats.LimitPeerWindow, most)
		require.Greater(t, share, 0.9)
		require.InDelta(t, 28e6, float64(b.Stats().BytesReceived-before)/10, 1e6)
		require.NoError(t, a.Abort())
		require.Error(t, <-written)
		require.Positive(t, <-read)
	})
}
