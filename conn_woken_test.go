package kcp

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/netsim"
)

// While a woken call has not run, an ACK waits for it, for 25 ms and half of a round trip
// in all.
func TestAckAwaitsCall(t *testing.T) {
	for _, late := range []bool{false, true} {
		inWorld(t, 1, netsim.LinkConfig{Delay: 20 * time.Millisecond}, func(t *testing.T, w *world) {
			l := w.listen(nil)
			e, _ := w.endpoint("10.0.0.2:0", nil)
			a := w.dial(e)
			b := accepted(t, l)
			bothWays(t, a, b, []byte("here"), []byte("here"))
			time.Sleep(time.Second)
			sent := make(chan time.Duration, 10)
			begin := time.Now()
			w.net.SetFilter(func(from, _ netip.AddrPort, p []byte) bool {
				if from == netip.MustParseAddrPort(serverAddr) {
					sent <- time.Since(begin)
				}
				return true
			})
			if late {
				b.mu.Lock()
				b.step.ready |= woken // as nothing waits, no call takes it back
				b.unlock()
			}
			_, err := a.Write([]byte("x"))
			require.NoError(t, err)
			time.Sleep(500 * time.Millisecond)
			require.Len(t, sent, 1)
			waited := <-sent - 20*time.Millisecond
			if late {
				require.InDelta(t, 45, waited.Milliseconds(), 2)
			} else {
				require.InDelta(t, 10, waited.Milliseconds(), 2)
			}
			require.Zero(t, a.Stats().SpuriousRetransmits)
			require.Zero(t, a.Stats().TimeoutRetransmits)
		})
	}
}
