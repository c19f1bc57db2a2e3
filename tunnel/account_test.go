package tunnel

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Each flow ends when its own time has come, in whatever order they began, and one timer
// is there for all of them.
func TestIdleFlowsEndInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAccount(2 * time.Minute)
		add := func() *flow {
			f := &flow{ended: true} // it has no stream to reset
			f.place.Owner = f
			a.add(f)
			return f
		}
		left := func(at time.Duration) int { // just before and behind a time
			time.Sleep(at - a.now())
			synctest.Wait()
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.flows.Len()
		}
		const little = time.Millisecond
		talks := add()
		a.pass(talks, true) // idle until 2:00
		require.Equal(t, 1, left(unansweredTimeout+little), "it was answered")
		add() // until 1:00, which is before the timer's time
		require.Equal(t, 2, left(2*unansweredTimeout))
		require.Equal(t, 1, left(2*unansweredTimeout+2*little))
		add() // until 1:30
		time.Sleep(20 * time.Second)
		a.pass(talks, false)
		add() // until 1:50: the timer has an earlier time
		require.Equal(t, 3, left(3*unansweredTimeout))
		require.Equal(t, 2, left(3*unansweredTimeout+3*little))
		require.Equal(t, 1, left(3*unansweredTimeout+21*time.Second))
		require.Equal(t, 1, left(2*time.Minute+time.Second), "packets have passed")
		require.Equal(t, 0, left(2*unansweredTimeout+22*time.Second+2*time.Minute))

		f := add()
		a.remove(f)
		add() // the timer was stopped with the last flow
		require.Equal(t, 0, left(a.now()+unansweredTimeout+little))
	})
}
