package udp

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Only short system calls are raw ones, and none in a process that lacks processor time.
func TestRawCalls(t *testing.T) {
	require.True(t, raw(shortCall))
	require.False(t, raw(shortCall+1))
	delayed.Store(true)
	defer delayed.Store(false)
	require.False(t, raw(1))
}
