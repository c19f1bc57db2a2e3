package kcp

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/netsim"
)

// A call counts as woken from the Broadcast on until it runs.
func TestWokenCall(t *testing.T) {
	inWorld(t, 1, netsim.LinkConfig{Delay: time.Millisecond}, func(t *testing.T, w *world) {
		l := w.listen(nil)
		e, _ := w.endpoint("10.0.0.2:0", nil)
		a := w.dial(e)
		b := accepted(t, l)
		bothWays(t, a, b, []byte("here"), []byte("here"))
		w.dial(e) // so that no call reads the socket
		// broadcast returns whether a call is woken before a Broadcast and after it.
		broadcast := func(n *notifier) (marked [2]bool) {
			b.mu.Lock()
			defer b.unlock()
			marked[0] = b.step.ready&woken != 0
			n.Broadcast()
			marked[1] = b.step.ready&woken != 0
			return marked
		}
		read := make(chan error, 1)
		go func() {
			_, err := b.Read(make([]byte, 1))
			read <- err
		}()
		synctest.Wait()
		require.Equal(t, [2]bool{false, true}, broadcast(&b.io.canRead))
		synctest.Wait()
		require.Equal(t, [2]bool{false, false}, broadcast(&b.io.canWrite), "the call waits again, for another thing")
		_, err := a.Write([]byte("x"))
		require.NoError(t, err)
		require.NoError(t, <-read)
		require.Equal(t, [2]bool{false, false}, broadcast(&b.io.canRead), "no call waits")
	})
}

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
