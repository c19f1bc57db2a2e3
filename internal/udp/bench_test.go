package udp

import (
	"testing"
)

// requireFeatures skips what the system does not have.
func requireFeatures(tb testing.TB, want Features, c Conn) {
	tb.Helper()
	if got := c.Features(); got != want {
		tb.Skipf("the system has %v, not %v", got, want)
	}
}
