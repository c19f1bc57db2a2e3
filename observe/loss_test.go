package observe

import (
	"context"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// One client on a bad path among nine on good ones shows, though of all segments together
// few are lost. Sessions that send nothing count among none.
func TestLossySessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := netsim.NewNetwork(1, netsim.LinkConfig{Delay: 10 * time.Millisecond})
		network.SetLink("10.0.0.1", "10.0.1.0", netsim.LinkConfig{Delay: 10 * time.Millisecond, Loss: 0.3})
		server := endpoint(t, network, "10.0.0.1:4000")
		l, err := server.Listen()
		require.NoError(t, err)
		var s Endpoints
		s.Add("server", server)
		var accepted []*kcp.Conn
		for i := range 11 {
			c, err := endpoint(t, network, fmt.Sprintf("10.0.1.%d:5000", i)).Dial(context.Background(), server.LocalAddr(), nil)
			require.NoError(t, err)
			_, err = c.Write([]byte("hello"))
			require.NoError(t, err)
			go func() { _, _ = io.Copy(io.Discard, c) }()
			conn, err := l.AcceptKCP(context.Background())
			require.NoError(t, err)
			accepted = append(accepted, conn)
		}
		has(t, text(t, &s), `kcp_sessions_sending{endpoint="server"} 0`)
		for i, c := range accepted[:10] {
			n := 2_000_000
			if i == 0 {
				n = 100_000
			}
			go func() { _, _ = c.Write(make([]byte, n)) }()
		}
		time.Sleep(lossWindow / 2)
		has(t, text(t, &s), `kcp_sessions_sending{endpoint="server"} 0`) // as before
		time.Sleep(lossWindow / 2)
		out := text(t, &s)
		for _, want := range []string{
			`kcp_sessions_sending{endpoint="server"} 10`,
			`kcp_sessions_lossy{above="0.05",endpoint="server"} 1`,
			`kcp_sessions_lossy{above="0.1",endpoint="server"} 1`,
		} {
			has(t, out, want)
		}
		totals := server.Totals()
		require.Less(t, float64(totals.Retransmits())/float64(totals.SegmentsSent), 0.02, "all together are no reason for an alarm")
		time.Sleep(lossWindow)
		has(t, text(t, &s), `kcp_sessions_lossy{above="0.02",endpoint="server"} 0`)
		require.Len(t, s.losses.each, 1)
	})
}

// What the ends have told each other shows at the next scrape.
func TestLosingIsOfEachScrape(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := netsim.NewNetwork(1, netsim.LinkConfig{Delay: 10 * time.Millisecond, Loss: 0.1})
		server, client := endpoint(t, network, "10.0.0.1:4000"), endpoint(t, network, "10.0.0.2:5000")
		_, err := server.Listen()
		require.NoError(t, err)
		c, err := client.Dial(context.Background(), server.LocalAddr(), nil)
		require.NoError(t, err)
		var s Endpoints
		s.Add("client", client)
		has(t, text(t, &s), `kcp_sessions_losing{above="0.02",direction="sent",endpoint="client"} 0`)
		for range 50 {
			_, err := c.Write(make([]byte, 20_000))
			require.NoError(t, err)
			time.Sleep(100 * time.Millisecond)
		}
		out := text(t, &s)
		has(t, out, `kcp_sessions_losing{above="0.02",direction="sent",endpoint="client"} 1`)
		has(t, out, `kcp_sessions_sending{endpoint="client"} 0`) // of longer ago
	})
}

// What a path takes longer than it can is in a metric of its own.
func TestQueueing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := netsim.NewNetwork(1, netsim.LinkConfig{Delay: 10 * time.Millisecond})
		server, client := endpoint(t, network, "10.0.0.1:4000"), endpoint(t, network, "10.0.0.2:5000")
		_, err := server.Listen()
		require.NoError(t, err)
		c, err := client.Dial(context.Background(), server.LocalAddr(), nil)
		require.NoError(t, err)
		var s Endpoints
		s.Add("client", client)
		has(t, text(t, &s), `kcp_session_queueing_seconds{endpoint="client",share="0.5"} 0`+"\n")
		network.SetLink("10.0.0.2", "10.0.0.1", netsim.LinkConfig{Delay: 60 * time.Millisecond})
		for range 60 {
			_, err := c.Ping(context.Background())
			require.NoError(t, err)
		}
		has(t, text(t, &s), `kcp_session_queueing_seconds{endpoint="client",share="0.5"} 0.0`)
		require.NotContains(t, text(t, &s), `kcp_session_queueing_seconds{endpoint="client",share="0.5"} 0`+"\n")
		require.Greater(t, c.Stats().RTT-c.Stats().RTTMin, 40*time.Millisecond)
	})
}
