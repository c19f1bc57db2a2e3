package kcp

import (
	"slices"
	"sync"
	"sync/atomic"
)

// feeding makes groups take the events of a batch of packets at once, after it
// was fed to all of its sessions.
type feeding struct {
	used atomic.Bool // a session of the endpoint, or its listener, was in a group

	mu      sync.Mutex // guards the fields below; no other lock is taken under it
	readers int        // that are feeding a batch
	due     []*Group   // with events
}

// begin begins a batch. end must follow.
func (f *feeding) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readers++
}

// end ends a batch. It wakes calls that wait for groups, and calls handlers of
// groups, so no lock is held.
func (f *feeding) end() {
	for g := f.next(true); g != nil; g = f.next(false) {
		g.attend(false)
	}
}

// next returns a group whose events are to be taken; nil if there is none. ended
// says that a batch has just ended.
func (f *feeding) next(ended bool) *Group {
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

// defers reports whether g.attend will be called at the end of a batch.
// Otherwise no reader is feeding one.
func (f *feeding) defers(g *Group) bool {
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
