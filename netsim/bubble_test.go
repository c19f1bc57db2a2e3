package netsim

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A network from outside of a bubble panics at its first use inside, and one that is
// made there works. A relay is refused.
func TestBubbles(t *testing.T) {
	outside := NewNetwork(1, LinkConfig{})
	before, err := outside.Listen("10.0.0.1:4000")
	require.NoError(t, err)
	relay, err := NewRelay("127.0.0.1:9", LinkConfig{}, LinkConfig{}, 1)
	require.NoError(t, err)
	require.NoError(t, relay.Close())
	there := netip.MustParseAddrPort("10.0.0.2:4000")
	synctest.Test(t, func(t *testing.T) {
		const want = "netsim: a Network is used in a bubble of testing/synctest, but was made outside of it: call NewNetwork inside"
		for _, use := range []func(){
			func() { _, _ = outside.Listen("10.0.0.2:4000") },
			func() { _, _ = before.WriteToAddrPort([]byte("x"), there) },
			func() { outside.Inject(there, there, []byte("x")) },
			func() { outside.At(time.Second, func() {}) },
			func() { outside.Elapsed() },
		} {
			require.PanicsWithValue(t, want, use)
		}
		inside := NewNetwork(1, LinkConfig{Delay: time.Second})
		a, err := inside.Listen("10.0.0.1:4000")
		require.NoError(t, err)
		b, err := inside.Listen(there.String())
		require.NoError(t, err)
		_, err = a.WriteToAddrPort([]byte("x"), there)
		require.NoError(t, err)
		_, _, err = b.ReadFromAddrPort(make([]byte, 1))
		require.NoError(t, err)
		_, err = NewRelay("127.0.0.1:9", LinkConfig{}, LinkConfig{}, 1)
		require.ErrorContains(t, err, "netsim: a Relay has real sockets, which stop the clock of a bubble")
	})
	_, err = outside.Listen("10.0.0.2:4000") // no lock is held
	require.NoError(t, err)
}
