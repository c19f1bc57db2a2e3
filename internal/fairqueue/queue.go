// Package fairqueue runs work that takes processor time, a bounded number of pieces at
// a time, and lets the flows that have work waiting take turns (fair queuing, RFC 970).
// It does not bound how much waits: its callers do.
package fairqueue

import (
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Lease is how long work keeps another from running. What takes longer waits for
// something other than a processor, or is a callback that does.
const Lease = 100 * time.Millisecond

// Queue is such a queue. All methods are safe for concurrent use, and none waits.
type Queue struct {
	slots int // pieces of work at a time; immutable

	mu      sync.Mutex // guards the fields below; locked last
	running []*piece   // that have a slot
	turns   []netip.Addr
	waiting map[netip.Addr][]func() // of each flow in turns, which is not empty
	armed   bool                    // a timer calls expire
}

// piece is work that runs.
type piece struct{ since time.Time }

// New returns a queue that runs so many pieces of work at a time.
func New(slots int) *Queue {
	return &Queue{slots: slots, waiting: make(map[netip.Addr][]func())}
}

// Go has f run on a goroutine of its own: at once, or when it is the turn of its flow.
func (q *Queue) Go(flow netip.Addr, f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.running) < q.slots {
		q.startLocked(f)
		return
	}
	if len(q.waiting[flow]) == 0 {
		q.turns = append(q.turns, flow)
	}
	q.waiting[flow] = append(q.waiting[flow], f)
	q.armLocked()
}

// startLocked begins a piece of work.
func (q *Queue) startLocked(f func()) {
	p := &piece{time.Now()}
	q.running = append(q.running, p)
	go func() {
		defer q.done(p)
		f()
	}()
}

// done ends a piece of work, and begins the next, unless that had its slot already.
func (q *Queue) done(p *piece) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.running, p); i >= 0 {
		q.running = slices.Delete(q.running, i, i+1)
		q.nextLocked()
	}
}

// nextLocked begins work of the flow whose turn it is, if any waits.
func (q *Queue) nextLocked() {
	if len(q.turns) == 0 {
		return
	}
	flow := q.turns[0]
	q.turns = q.turns[1:]
	all := q.waiting[flow]
	next := all[0]
	all[0] = nil
	if len(all) == 1 {
		delete(q.waiting, flow)
	} else {
		q.waiting[flow] = all[1:]
		q.turns = append(q.turns, flow)
	}
	q.startLocked(next)
}

// armLocked sets a timer for the end of the oldest lease, if something waits for that.
func (q *Queue) armLocked() {
	if !q.armed && len(q.turns) > 0 {
		q.armed = true
		time.AfterFunc(time.Until(q.running[0].since.Add(Lease)), q.expire)
	}
}

// expire passes on the slots of work whose lease has ended.
func (q *Queue) expire() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.armed = false
	for len(q.turns) > 0 && time.Since(q.running[0].since) >= Lease {
		q.running = slices.Delete(q.running, 0, 1)
		q.nextLocked()
	}
	q.armLocked()
}
