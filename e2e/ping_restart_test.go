package e2e

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/stretchr/testify/require"
)

// A server that was started again answers the PING of a call of Ping by RESET, as it
// would that of the keep-alive, and shows in a round trip that the session is gone. A
// RESET that does not echo the PING shows nothing.
func TestPingShowsRestart(t *testing.T) {
	for name, config := range map[string]*kcp.Config{"plain": {}, "AEAD": {Cipher: testAEAD(t)}} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 1, clean, func(t *testing.T, w *world) {
				l, pc := w.server(config)
				e, _ := w.endpoint("10.0.0.2:5000", config)
				a := w.dial(e)
				b := accepted(t, l)
				bothWays(t, a, b, []byte("here"), []byte("here"))
				time.Sleep(3 * time.Second)
				_, err := a.Ping(context.Background())
				require.NoError(t, err)
				_ = pc.Close()
				_ = l.Endpoint().Close()
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				if name == "plain" {
					for sn := range uint32(10) {
						forged := make([]byte, headerSize)
						signal{sigReset, sn, sn}.encode(header{conv: a.Conv(), wnd: 128}, forged)
						time.AfterFunc(time.Duration(sn+1)*50*time.Millisecond, func() {
							w.net.Inject(acceptorAddr, netip.MustParseAddrPort("10.0.0.2:5000"), forged)
						})
					}
				}
				_, err = a.Ping(ctx)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				w.server(config)
				start := time.Now()
				_, err = a.Ping(context.Background())
				require.ErrorIs(t, err, kcp.ErrReset)
				require.Less(t, time.Since(start), 200*time.Millisecond)
			})
		})
	}
}
