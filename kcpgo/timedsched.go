package kcp

import (
	"runtime"
	"sync"
	"time"
)

// SystemTimedSched is a scheduler for the program. Sessions do not use it; it is
// here because kcp-go exports it.
var SystemTimedSched = NewTimedSched(max(runtime.NumCPU(), 2))

// TimedSched calls functions at given times. It has no goroutine while no function is
// due. All methods are safe for concurrent use.
type TimedSched struct {
	running chan struct{} // has an element for each function that runs
	closed  chan struct{}
	close   sync.Once
}

// NewTimedSched returns a scheduler that calls at most parallel functions at
// once, one if parallel is less.
func NewTimedSched(parallel int) *TimedSched {
	return &TimedSched{running: make(chan struct{}, max(parallel, 1)), closed: make(chan struct{})}
}

// Put calls f at the given time, or at once if that has passed, on a goroutine
// of the scheduler. It does not wait. After Close it does nothing.
func (s *TimedSched) Put(f func(), deadline time.Time) {
	time.AfterFunc(time.Until(deadline), func() {
		select {
		case s.running <- struct{}{}:
			defer func() { <-s.running }()
		case <-s.closed:
		}
		select {
		case <-s.closed:
		default:
			f()
		}
	})
}

// Close drops the functions that wait. Those that run go on. Further calls do
// nothing.
func (s *TimedSched) Close() { s.close.Do(func() { close(s.closed) }) }
