package testenv

import (
	"testing"
	"time"
)

// Await returns once condition holds. It is how tests in real time wait: for a condition,
// not for a time. A busy machine fails no test: only the test binary has a limit
// (-timeout), and then shows where each goroutine waits. A test that has failed already
// waits no longer.
func Await(t testing.TB, condition func() bool) {
	t.Helper()
	for !condition() {
		if t.Failed() {
			t.FailNow()
		}
		time.Sleep(time.Millisecond)
	}
}
