package wakeup

import (
	"testing"

	"github.com/stretchr/testify/require"
)

type reader struct{}

func (*reader) handles(f func()) { f() }

func handles(f func()) { f() }

// deep calls f from n functions within each other.
func deep(n int, f func()) {
	if n == 0 {
		f()
		return
	}
	deep(n-1, f)
}

func TestWithin(t *testing.T) {
	within := false
	ask := func() { within = Within((*reader).handles, handles) }
	ask()
	require.False(t, within)
	for _, depth := range []int{0, 1, 59, 60, 61, 62, 63, 64, 65, 66, 200} {
		deep(depth, ask)
		require.False(t, within, depth)
		for _, call := range []func(func()){handles, new(reader).handles} {
			call(func() { deep(depth, ask) })
			require.True(t, within, depth)
			done := make(chan bool)
			call(func() {
				go func() { deep(depth, ask); close(done) }()
				<-done
			})
			require.False(t, within, "another goroutine: %d", depth)
		}
	}
}
