package e2e

import (
	"io"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// A peer without signals that only sends, and seldom, keeps its session, though nothing
// validates its address: it answers what it takes for a window probe. Packets may be
// lost. Once it is gone, its session ends by the peer time-out.
func TestLegacyPeerThatOnlySends(t *testing.T) {
	for _, loss := range []float64{0, 0.1} {
		for _, config := range []kcp.Config{{}, {PeerTimeout: 10 * time.Minute, KeepAlive: -1}, {FEC: kcp.FEC{Data: 3, Parity: 1}}} {
			inWorld(t, 3, netsim.LinkConfig{Delay: 50 * time.Millisecond}, func(t *testing.T, w *world) {
				l := w.listen(&config)
				p := newLegacyPeer(w, "10.0.0.9:9", l.Addr(), config.FEC != kcp.FEC{})
				p.write([]byte("first"))
				c := accepted(t, l)
				time.Sleep(time.Minute)
				w.net.SetLink("", "", netsim.LinkConfig{Delay: 50 * time.Millisecond, Loss: loss})
				p.write([]byte("first"))
				b := make([]byte, 5)
				for range 11 {
					_, err := io.ReadFull(c, b)
					require.NoError(t, err)
					require.Equal(t, "first", string(b))
					require.Equal(t, 1, l.Stats().HalfOpen)
					time.Sleep(time.Minute)
					p.write([]byte("first"))
				}
				w.deaf()
				var lost *kcp.PeerLostError
				<-c.Done()
				require.ErrorAs(t, c.Err(), &lost)
				require.LessOrEqual(t, lost.Silence, max(config.PeerTimeout, 30*time.Second))
				require.Zero(t, l.Stats().Sessions)
			})
		}
	}
}
