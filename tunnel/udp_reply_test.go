package tunnel

import (
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/tunnel/internal/carrier"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// flooder runs a UDP service that answers a packet with packets of a size, for as long as
// more returns true.
func flooder(t *testing.T, size int, more func() bool) (address string) {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for b, packet := make([]byte, maxPacket), make([]byte, size); ; {
			_, from, err := pc.ReadFrom(b)
			for err == nil && more() {
				_, err = pc.WriteTo(packet, from)
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = pc.Close()
		<-ended
	})
	return pc.LocalAddr().String()
}

// traffic is what has come to a socket.
type traffic struct{ packets, bytes int }

// countUntil reads packets until one of them is mark, or there are enough bytes.
func countUntil(t *testing.T, pc net.PacketConn, mark string, enough int) (got traffic) {
	for b := make([]byte, maxPacket); got.bytes < enough; {
		n, _, err := pc.ReadFrom(b)
		if !assert.NoError(t, err) || string(b[:n]) == mark {
			break
		}
		got.packets++
		got.bytes += n
	}
	return got
}

// openerOf returns the session at the end that listens for packets.
func openerOf(t *testing.T, s *testServer, c *testClient, remote string) *session {
	t.Helper()
	if remote[0] == 'R' {
		return &theSession(t, s).session
	}
	waitFor(t, func() bool { return c.Status().Sessions == 1 })
	return &c.pool.all()[0].session
}

// An address from which one packet has come, which may be forged, gets three times that
// in bytes and in packets, whatever a service sends there. That holds for what the server
// listens on, and for what a client listens on for a network. Who answers gets more.
func TestForgedAskerGetsThreeTimes(t *testing.T) {
	const server, client = "R:127.0.0.1:0:%s/udp", "0.0.0.0:0:%s/udp"
	const mark, flood = "the end of what was sent before", 100_000
	for name, c := range map[string]struct {
		remote          string // with the address of the service
		question, reply int
		most            traffic
	}{
		"at the server":      {server, 400, 100, traffic{3, 300}},
		"replies that fit":   {server, 40, 60, traffic{2, 120}},
		"replies too large":  {server, 40, 1000, traffic{}},
		"messages":           {server, 1000, 20_000, traffic{}},
		"an empty question":  {server, 0, 100, traffic{}},
		"at a client":        {client, 400, 100, traffic{3, 300}},
		"at a client, small": {client, 20, 20, traffic{3, 60}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var opener atomic.Pointer[kcp.Conn]
			var enough atomic.Uint64
			arrived := func() uint64 { // from the service
				stats := opener.Load().Stats()
				return stats.BytesReceived + uint64(c.reply)*stats.Datagrams.Received
			}
			at := flooder(t, c.reply, func() bool { return arrived() < enough.Load() })
			s := startServer(t, everything, nil)
			one := startClient(t, clientConfig(t, s, fmt.Sprintf(c.remote, at)))
			_, port, err := net.SplitHostPort(one.address(t))
			require.NoError(t, err)
			opener.Store(openerOf(t, s, one, c.remote).conn.(carrier.KCP).Conn)
			asker, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			require.NoError(t, err)
			defer asker.Close()
			listens, err := net.ResolveUDPAddr("udp", "127.0.0.1:"+port)
			require.NoError(t, err)
			ask := func() {
				enough.Store(arrived() + flood)
				_, err := asker.WriteTo(make([]byte, c.question), listens)
				require.NoError(t, err)
			}
			got := make(chan traffic, 1)
			go func() { got <- countUntil(t, asker, mark, 1<<30) }()
			ask()
			waitFor(t, func() bool {
				return arrived() >= enough.Load() && strings.Contains(one.log.String()+s.log.String(), "packets not sent")
			})
			marker := dialUDP(t, asker.LocalAddr().String())
			_, err = marker.Write([]byte(mark))
			require.NoError(t, err)
			require.Equal(t, c.most, <-got)
			if c.most.packets > 0 {
				ask()
				countUntil(t, asker, mark, 2000)
			}
		})
	}
}

// What a client listens on for its own machine has no limit: no packet of elsewhere comes
// there.
func TestLocalAskersHaveNoLimit(t *testing.T) {
	t.Parallel()
	var over atomic.Bool
	at := flooder(t, 1000, func() bool { return !over.Load() })
	_, c := connected(t, "127.0.0.1:0:"+at+"/udp")
	listens := c.address(t)
	waitFor(t, func() bool { return c.Status().Sessions == 1 })
	conn := dialUDP(t, listens)
	_, err := conn.Write([]byte("x"))
	require.NoError(t, err)
	countUntil(t, conn.(*net.UDPConn), "", 20_000)
	over.Store(true)
}
