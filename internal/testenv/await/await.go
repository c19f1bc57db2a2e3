// Package await is how tests in real time wait: for a condition, not for a time. It
// imports nothing of this module, so that tests of every package may use it.
package await

import (
	"testing"
	"time"
)

// True returns once condition holds. A busy machine fails no test: only the test binary
// has a limit (-timeout), and then shows where each goroutine waits. A test that has
// failed already waits no longer.
func True(t testing.TB, condition func() bool) {
	t.Helper()
	for !condition() {
		if t.Failed() {
			t.FailNow()
		}
		time.Sleep(time.Millisecond)
	}
}
