package wakeup

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Batches makes sets take the events of a batch of packets at once, after it
// was fed to all of its sessions.
type Batches[G any] struct {
	Used atomic.Bool // something of the endpoint's was in a set

	mu      sync.Mutex // guards the fields below; no other lock is taken under it
	readers int        // that are feeding a batch
	due     []*G       // with events
}

// Begin begins a batch. End must follow.
func (f *Batches[G]) Begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readers++
}

// End ends a batch. It calls attend for each set that has events, so no lock is held.
func (f *Batches[G]) End(attend func(*G)) {
	for g := f.next(true); g != nil; g = f.next(false) {
		attend(g)
	}
}

// next returns a set whose events are to be taken; nil if there is none. ended
// says that a batch has just ended.
func (f *Batches[G]) next(ended bool) *G {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ended {
		f.readers--
	}
	last := len(f.due) - 1
	if last < 0 {
		return nil
	}
	g := f.due[last]
	f.due[last] = nil
	f.due = f.due[:last]
	return g
}

// Defers reports whether attend will be called with g at the end of a batch.
// Otherwise no reader is feeding one.
func (f *Batches[G]) Defers(g *G) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readers == 0 {
		return false
	}
	if !slices.Contains(f.due, g) {
		f.due = append(f.due, g)
	}
	return true
}
