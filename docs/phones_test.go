package docs

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
)

// alive reports whether a session has outlived the sleep of its process, or a change of
// the network: within a round trip if the server answers, after 2 s if it does not.
func alive(ctx context.Context, conn *kcp.Conn) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err := conn.Ping(ctx)
	return err == nil
}

// TestAlive asks a server that is there, one that has forgotten the session, and none.
func TestAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dialled, accepted, network := session(t, nil)
		asks := func(want bool, within time.Duration) {
			t.Helper()
			begin := time.Now()
			require.Equal(t, want, alive(t.Context(), dialled))
			require.LessOrEqual(t, time.Since(begin), within)
		}
		asks(true, 11*time.Millisecond)
		network.Cut("10.0.0.1", "")
		asks(false, 2*time.Second)
		network.Heal("10.0.0.1", "")
		asks(true, 11*time.Millisecond)
		network.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool { return from.Addr().String() != "10.0.0.1" })
		require.NoError(t, accepted.Abort(0, ""))
		network.SetFilter(nil)
		time.Sleep(time.Second)
		asks(false, 11*time.Millisecond)
		require.ErrorIs(t, dialled.Err(), kcp.ErrReset)
	})
}
