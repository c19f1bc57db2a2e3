package udp

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A process lacks processor time for a second after a timer that was late.
func TestDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer delayed.Store(false)
		Delayed(delayedBy - 1)
		require.False(t, delayed.Load())
		Delayed(delayedBy)
		time.Sleep(delayedFor)
		Delayed(0)
		require.True(t, delayed.Load())
		Delayed(time.Hour)
		time.Sleep(time.Nanosecond)
		Delayed(0)
		require.True(t, delayed.Load())
		time.Sleep(delayedFor)
		Delayed(delayedBy - 1)
		require.False(t, delayed.Load())
	})
}
