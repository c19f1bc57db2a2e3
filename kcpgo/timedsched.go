package kcp

import (
	"container/heap"
	"runtime"
	"sync"
	"time"
)

// SystemTimedSched is a scheduler for the program. Sessions do not use it; it is
// here because kcp-go exports it.
var SystemTimedSched = NewTimedSched(max(runtime.NumCPU(), 2))

// TimedSched calls functions at given times. It has no goroutine, and no timer,
// while no function waits. All methods are safe for concurrent use.
type TimedSched struct {
	parallel int // functions called at once, at most; immutable

	mu      sync.Mutex // guards the fields below
	waiting timedFuncs
	timer   *time.Timer // calls wake when the first of waiting is due; nil before the first Put
	running int         // goroutines that call functions
	closed  bool
}

// timedFunc is a function that is to be called at a time.
type timedFunc struct {
	call func()
	at   time.Time
	nth  uint64 // its place among the ones of the same time
}

// NewTimedSched returns a scheduler that calls at most parallel functions at
// once, one if parallel is less.
func NewTimedSched(parallel int) *TimedSched {
	return &TimedSched{parallel: max(parallel, 1)}
}

// Put calls f at the given time, or at once if that has passed, on a goroutine
// of the scheduler. It does not wait. After Close it does nothing.
func (s *TimedSched) Put(f func(), deadline time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.waiting.puts++
	heap.Push(&s.waiting, timedFunc{f, deadline, s.waiting.puts})
	s.arrangeLocked()
}

// Close drops the functions that wait. Those that run go on. Further calls do
// nothing.
func (s *TimedSched) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.waiting = true, timedFuncs{}
	if s.timer != nil {
		s.timer.Stop()
	}
}

// arrangeLocked starts a goroutine if a function is due and one is free, and
// sets the timer if one is to become due. s.mu is held.
func (s *TimedSched) arrangeLocked() {
	if s.waiting.Len() == 0 || s.running == s.parallel {
		return // a goroutine that ends its function looks again
	}
	wait := time.Until(s.waiting.items[0].at)
	switch {
	case wait <= 0:
		s.running++
		go s.work()
	case s.timer == nil:
		s.timer = time.AfterFunc(wait, s.wake)
	default:
		s.timer.Reset(wait)
	}
}

// wake follows the timer.
func (s *TimedSched) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arrangeLocked()
}

// work calls functions while some are due. For each it lets another goroutine
// take the next.
func (s *TimedSched) work() {
	s.mu.Lock()
	for s.waiting.Len() > 0 && time.Until(s.waiting.items[0].at) <= 0 {
		f := heap.Pop(&s.waiting).(timedFunc)
		s.arrangeLocked()
		s.mu.Unlock()
		f.call()
		s.mu.Lock()
	}
	s.running--
	s.arrangeLocked()
	s.mu.Unlock()
}

// timedFuncs is a heap by time.
type timedFuncs struct {
	items []timedFunc
	puts  uint64 // functions ever put
}

func (h *timedFuncs) Len() int { return len(h.items) }

func (h *timedFuncs) Less(i, j int) bool {
	a, b := h.items[i], h.items[j]
	if !a.at.Equal(b.at) {
		return a.at.Before(b.at)
	}
	return a.nth < b.nth
}

func (h *timedFuncs) Swap(i, j int) { h.items[i], h.items[j] = h.items[j], h.items[i] }
func (h *timedFuncs) Push(x any)    { h.items = append(h.items, x.(timedFunc)) }

func (h *timedFuncs) Pop() any {
	last := len(h.items) - 1
	f := h.items[last]
	h.items[last] = timedFunc{}
	h.items = h.items[:last]
	return f
}
