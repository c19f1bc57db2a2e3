package takeover

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// at returns a Departure at a stage, as if a first handover were under way or over.
func at(stage Stage) *Departure {
	return &Departure{stage: stage, wake: make(chan struct{}, 1), drained: make(chan struct{})}
}

// draining is an endpoint that was handed over.
type draining struct {
	opening, refused, empty atomic.Bool
	hold                    time.Duration
	closed                  chan struct{}
	shut                    func()
}

func (e *draining) Opening() bool                  { return e.opening.Load() }
func (e *draining) Refuse()                        { e.refused.Store(true) }
func (e *draining) Emptied() (time.Duration, bool) { return e.hold, e.empty.Load() }
func (e *draining) Closed() <-chan struct{}        { return e.closed }
func (e *draining) Shut()                          { e.shut() }

// Accept ends when no session is about to be offered to it, and the endpoint when the
// last has ended and needs no answer any more.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := at(Left)
		e := &draining{hold: 300 * time.Millisecond, closed: make(chan struct{})}
		e.opening.Store(true)
		e.shut = func() { close(e.closed) }
		go d.Drain(e)
		time.Sleep(time.Second)
		require.False(t, e.refused.Load())
		e.opening.Store(false)
		time.Sleep(drainPoll)
		synctest.Wait()
		require.True(t, e.refused.Load())
		time.Sleep(time.Hour)
		begin := time.Now()
		e.empty.Store(true)
		d.Tell(Note{Kind: Ended, Addr: v4})
		<-d.Drained()
		require.Equal(t, e.hold, time.Since(begin))
	})
}

// An endpoint that somebody else closes meanwhile ends at once, also while it answers for
// its last session.
func TestDrainEndsWithTheEndpoint(t *testing.T) {
	for _, empty := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := at(Left)
			e := &draining{hold: time.Hour, closed: make(chan struct{}), shut: func() {}}
			e.opening.Store(true)
			e.empty.Store(empty)
			begin := time.Now()
			time.AfterFunc(time.Second, func() { close(e.closed) })
			d.Drain(e)
			require.Equal(t, time.Second, time.Since(begin))
			require.True(t, e.refused.Load())
		})
	}
}
