package e2e

import (
	"fmt"
	"testing"

	"github.com/arqnet/kcp"
	"github.com/stretchr/testify/require"
)

// Transfers in both directions with every cipher and ratio, over a bad link.
func TestTransfersThroughPipeline(t *testing.T) {
	for name, cipher := range testCiphers(t, 1) {
		for i, fec := range []kcp.FEC{{}, {Data: 10, Parity: 3}, {Data: 1, Parity: 1}, {Data: 20, Parity: 10}} {
			t.Run(fmt.Sprintf("%s-%d-%d", name, fec.Data, fec.Parity), func(t *testing.T) {
				inWorld(t, uint64(i), lossy, func(t *testing.T, w *world) {
					client, server := kcp.LowLatency(), kcp.LowLatency()
					client.Cipher, server.Cipher = cipher, cipher
					client.FEC = fec
					if i%2 == 0 { // else only one side sends FEC
						server.FEC = kcp.FEC{Data: 3, Parity: 1}
					}
					a, b, l := w.pair(&client, &server)
					bothWays(t, a, b, content(1, 300000), content(2, 200000))
					for _, c := range []*kcp.Conn{a, b} {
						dropped := c.Stats().Dropped
						dropped.FEC = 0 // the link repeats parity packets
						require.Zero(t, dropped)
					}
					require.Zero(t, l.Endpoint().Stats().DropCipher)
					require.Equal(t, fec.Data > 0, b.Stats().FEC.Recovered > 0)
					require.Equal(t, i%2 == 0, a.Stats().FEC.Recovered > 0)
					if fec.Data > 0 {
						require.Equal(t, fec, b.Stats().FEC.PeerRatio)
					}
				})
			})
		}
	}
}
