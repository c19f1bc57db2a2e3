package wakeup

import (
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// Calls are made in order, one at a time; those beyond the most are not made. A call that
// ends its goroutine stops none of the others, and no goroutine is left.
func TestCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q CallQueue
		var made []int
		blocked, running := make(chan struct{}), 0
		for i := range 6 {
			q.Add(4, func() {
				running++
				require.Equal(t, 1, running, "one at a time")
				made = append(made, i)
				if i == 0 {
					<-blocked
				}
				running--
				if i == 2 {
					runtime.Goexit()
				}
			})
			synctest.Wait()
		}
		require.Equal(t, []int{0}, made)
		close(blocked)
		synctest.Wait()
		require.Equal(t, []int{0, 1, 2, 3, 4}, made, "the sixth was one too many")
		require.False(t, q.calling)
		q.Add(1, func() { made = nil })
		synctest.Wait()
		require.Empty(t, made)
	})
}
