package sizes

import (
	"fmt"
	"testing"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// IPv4 paths of 576 and 1000 bytes, with the router's ICMP messages and without. Without
// Config.MTU sessions work, in packets that routers may fragment; with it, nothing is
// fragmented. Those with TLS, which have packets of 1200 bytes at least, are fragmented.
func TestPathBelowTheBase(t *testing.T) {
	const headers = 28
	for _, mtu := range []int{576, 1000} {
		for _, icmp := range []bool{false, true} {
			for name, config := range map[string]kcp.Config{
				"plain": {}, "plain, MTU": {MTU: mtu - headers, MaxMTU: -1}, "TLS": {TLS: testenv.TLS()},
			} {
				t.Run(fmt.Sprintf("%d, ICMP %v, %s", mtu, icmp, name), func(t *testing.T) {
					if testing.Short() && icmp == (mtu == 576) {
						t.Skip("one of each in short tests")
					}
					n := newNarrow(t)
					if !icmp {
						n.filterICMP(t)
					}
					n.takes(t, mtu)
					s := n.sniff(t)
					a, b := n.connect(t, "10.1.0.2:0", "10.2.0.2:0", &config)
					for round := uint64(0); round < 2; round++ {
						transfer(t, a, b, 2<<20, 2*round)
						transfer(t, b, a, 2<<20, 2*round+1)
					}
					for i, way := range [][2]*kcp.Conn{{a, b}, {b, a}} {
						sent, again := transfer(t, way[0], way[1], 2<<20, uint64(10+i))
						t.Logf("%+v: %d segments, %d again, %d whole, %d divisible, %d fragments", way[0].Stats().PathMTU,
							sent, again, s.whole.Load(), s.divisible.Load(), s.fragments.Load())
						require.Less(t, again, sent/4)
					}
					if config.MTU != 0 {
						s.requireWhole(t)
					}
				})
			}
		}
	}
}
