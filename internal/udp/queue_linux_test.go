package udp

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// The state of a socket's receive buffer shows what waits in it, and what was
// dropped, whichever way the socket is read.
func TestReadQueue(t *testing.T) {
	for _, wanted := range []Features{{}, wantedFeatures()} {
		pc, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		require.NoError(t, err)
		defer pc.Close()
		require.NoError(t, pc.SetReadBuffer(64<<10))
		c := newConn(pc, wanted)
		var q Queue
		require.True(t, c.ReadQueue(&q))
		require.Zero(t, q.Used)
		require.Zero(t, q.Drops)
		require.Equal(t, 128<<10, q.Limit)
		for range 200 {
			_, err := pc.WriteToUDP(make([]byte, 1472), pc.LocalAddr().(*net.UDPAddr))
			require.NoError(t, err)
		}
		require.True(t, c.ReadQueue(&q))
		require.Greater(t, q.Used, q.Limit/2)
		require.Greater(t, q.Drops, uint32(100))
		require.Zero(t, testing.AllocsPerRun(100, func() { c.ReadQueue(&q) }))
		require.NoError(t, pc.Close())
		require.False(t, c.ReadQueue(&q))
	}
	foreign := newConn(struct{ net.PacketConn }{}, Features{})
	require.False(t, foreign.ReadQueue(new(Queue)))
}
