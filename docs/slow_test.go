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

// TestSlowest has a reader that does not read, and one that does.
func TestSlowest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, network := session(t, &kcp.Config{ReceiveWindow: 2048})
		network.SetLink("", "", netsim.LinkConfig{Delay: 50 * time.Millisecond})
		written := make(chan error, 1)
		go func() {
			_, err := a.Write(make([]byte, 1<<28))
			written <- err
		}()
		most, share := slowest(b, 10*time.Second)
		require.Equal(t, stats.LimitReader, most)
		require.Greater(t, share, 0.9)
		go func() { _, _ = io.Copy(io.Discard, b) }()
		time.Sleep(2 * time.Second)
		most, share = slowest(a, 2*time.Second)
		require.Equal(t, stats.LimitPeerWindow, most)
		require.Greater(t, share, 0.9)
		require.NoError(t, a.Abort(0, ""))
		require.Error(t, <-written)
	})
}

// TestScoreboard has the round-trip time of each session.
func TestScoreboard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, network := session(t, nil)
		network.SetLink("", "", netsim.LinkConfig{Delay: 50 * time.Millisecond})
		for range 40 {
			_, err := a.Ping(t.Context())
			require.NoError(t, err)
		}
		board := scoreboard(a.Endpoint())
		require.Len(t, board, 1)
		require.InDelta(t, 100, board[a.RemoteAddr().String()].Milliseconds(), 2)
	})
}
