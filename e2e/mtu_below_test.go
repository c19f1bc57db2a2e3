package e2e

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// A path that takes fewer than 1200 bytes of UDP payload, and drops what is larger
// without a word. Sessions work without Config.MTU: each suspicion of a black hole has
// segments leave in pieces that pass. With Config.MTU nothing is lost. docs/settings.md
// says so.
func TestPathBelowTheBase(t *testing.T) {
	slowUnderRace(t)
	const size = 4 << 20
	for _, mtu := range []int{548, 972, 1100} {
		for name, config := range map[string]kcp.Config{
			"plain": {}, "AEAD": {Cipher: testAEAD(t)}, "FEC": {FEC: kcp.FEC{Data: 10, Parity: 3}},
		} {
			for _, set := range []int{0, mtu} {
				t.Run(fmt.Sprintf("%d, %s, MTU %d", mtu, name, set), func(t *testing.T) {
					link := netsim.LinkConfig{Delay: 20 * time.Millisecond, Rate: 2 << 20, Queue: 200_000, MTU: mtu}
					config := config
					if config.MTU = set; set > 0 {
						config.MaxMTU = -1
					}
					inWorld(t, 1, link, func(t *testing.T, w *world) {
						a, b, _ := w.pair(&config, &config)
						start := time.Now()
						bothWays(t, a, b, content(1, size), content(2, size))
						took, s := time.Since(start), a.Stats()
						t.Logf("%v, %d segments, %d again", took, s.SegmentsSent, s.Retransmits())
						require.Less(t, took, 20*time.Second)
						if set > 0 {
							require.Less(t, s.Retransmits(), s.SegmentsSent/100)
						} else {
							require.Less(t, s.Retransmits(), 2*s.SegmentsSent/5) // 0.12 to 0.3, as goroutines run
						}
					})
				})
			}
		}
	}
}

// A TLS handshake has packets of 1200 bytes, which such a path has to fragment.
func TestTLSNeedsTheBase(t *testing.T) {
	for _, mtu := range []int{1199, 1200} {
		inWorld(t, 1, netsim.LinkConfig{Delay: 20 * time.Millisecond, MTU: mtu}, func(t *testing.T, w *world) {
			config := &kcp.Config{TLS: testTLS()}
			l := w.listen(config)
			e, _ := w.endpoint("10.0.0.2:0", config)
			a, err := e.Dial(context.Background(), l.Addr().(*net.UDPAddr))
			if mtu < 1200 {
				var silent *kcp.NoAnswerError
				require.ErrorAs(t, err, &silent)
				return
			}
			require.NoError(t, err)
			bothWays(t, a, accepted(t, l), content(1, 1<<20), content(2, 1<<20))
		})
	}
}
