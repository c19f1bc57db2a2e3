package docs

import (
	"context"
	"net"
	"testing"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// meet opens a session with a peer that calls it too, as docs/peer-to-peer.md has it.
func meet(ctx context.Context, endpoint *kcp.Endpoint, peer net.Addr) (*kcp.Conn, error) {
	c, err := endpoint.DialWith(ctx, peer, kcp.DialOptions{SimultaneousOpen: true})
	return c, err
}

func TestPeerToPeer(t *testing.T) {
	var ends [2]*kcp.Endpoint
	for i := range ends {
		pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		require.NoError(t, err)
		defer pc.Close()
		ends[i], err = kcp.NewEndpoint(pc, nil)
		require.NoError(t, err)
		defer ends[i].Close()
	}
	conns := make(chan *kcp.Conn)
	for i, e := range ends {
		go func() {
			c, err := meet(t.Context(), e, ends[1-i].LocalAddr())
			require.NoError(t, err)
			conns <- c
		}()
	}
	a, b := <-conns, <-conns
	require.NotEqual(t, a.Dialled(), b.Dialled())
	testenv.BothWays(t, a, b, []byte("here"), []byte("there"))
}
