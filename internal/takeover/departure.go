package takeover

import (
	"sync"
	"sync/atomic"
	"time"
)

// Stage is how far an endpoint is in handing its sockets over.
type Stage uint8

const (
	Serves    Stage = iota // this process reads the sockets
	Exchanges              // it does, and a handover is under way
	Leaves                 // the successor hears of all sessions, so none may begin here
	Left                   // the successor reads
	Resumes                // the successor has gone, and the readers return to the sockets
)

// event is what changes the stage.
type event uint8

const (
	begins  event = iota // HandOver is called
	leaves               // the readers have paused
	commits              // the successor has confirmed
	returns              // the exchange has failed, or the successor has gone: sessions may begin
	ends                 // the readers read their sockets again
)

// after returns the stage after an event. ok is false if there is no such event at s.
func (s Stage) after(e event) (next Stage, ok bool) {
	switch {
	case s == Serves && e == begins, s == Exchanges && e == returns, s == Leaves && e == returns:
		return Exchanges, true
	case s == Exchanges && e == leaves:
		return Leaves, true
	case s == Leaves && e == commits:
		return Left, true
	case s == Left && e == returns:
		return Resumes, true
	case (s == Exchanges || s == Resumes) && e == ends:
		return Serves, true
	}
	return s, false
}

// Departure is what an endpoint knows of its predecessors and its successor. The zero
// value is ready. It may be used with locks of the endpoint held, except for Drain.
type Departure struct {
	Before Predecessors
	Gate   atomic.Pointer[Handover] // readers pause for it, or have; nil: they read their sockets

	mu      sync.Mutex
	stage   Stage
	passing *Handover     // nil at Serves
	notes   []Note        // for the successor
	wake    chan struct{} // capacity 1: Drain has something to do; nil: nothing was handed over
	drained chan struct{} // closed when Drain has ended; nil: as wake
}

// moveLocked changes the stage. It reports whether the event is possible.
func (d *Departure) moveLocked(e event) (ok bool) {
	d.stage, ok = d.stage.after(e)
	if d.stage == Serves {
		d.passing = nil
	}
	return ok
}

func (d *Departure) move(e event) (ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.moveLocked(e)
}

// IsAway reports whether no session may begin here.
func (d *Departure) IsAway() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stage == Leaves || d.stage == Left
}

// Drained returns a channel that is closed when Drain has ended; nil: nothing was handed
// over.
func (d *Departure) Drained() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.drained
}

// AwaitResumed waits, for PauseTimeout at most, until all readers have noticed that the
// successor has gone, if one has.
func (d *Departure) AwaitResumed() {
	d.mu.Lock()
	h, resumes := d.passing, d.stage == Resumes
	d.mu.Unlock()
	if !resumes {
		return
	}
	limit := time.NewTimer(PauseTimeout)
	defer limit.Stop()
	select {
	case <-h.over:
	case <-limit.C:
	}
}

// reclaim lets sessions begin here again, and forwards to the predecessors that were
// passed on.
func (d *Departure) reclaim(before Retained) {
	d.Before.Start(before)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.moveLocked(returns)
	d.notes = nil
}

// Tell queues a note for the successor, if there is one.
func (d *Departure) Tell(n Note) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if (d.stage == Leaves || d.stage == Left) && len(d.notes) < MaxOwned {
		d.notes = append(d.notes, n)
	}
	if d.wake != nil {
		d.wakeLocked()
	}
}

// wakeLocked makes Drain look again.
func (d *Departure) wakeLocked() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// writeNotes writes the notes that are queued, as far as the successor reads. It reports
// whether some are left.
func (d *Departure) writeNotes() (left bool) {
	d.mu.Lock()
	notes, h := d.notes, d.passing
	d.notes = nil
	if d.stage != Leaves && d.stage != Left {
		h = nil
	}
	d.mu.Unlock()
	if h == nil {
		return false
	}
	for len(notes) > 0 {
		message, rest := encodeNotes(notes)
		if !h.notes.TryWrite(message) { // or it has gone, which the reader notices
			break
		}
		notes = rest
	}
	if len(notes) == 0 {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.passing == h && (d.stage == Leaves || d.stage == Left) {
		d.notes = append(notes, d.notes...)
	}
	return true
}

// leaveSuccessor tells the successor that no session is left, and lets go of it.
func (d *Departure) leaveSuccessor() {
	d.mu.Lock()
	d.notes = append(d.notes, Note{Kind: Over})
	h := d.passing
	if d.stage == Exchanges {
		h = nil // the exchange fails, and closes what it has opened
	}
	d.mu.Unlock()
	d.writeNotes()
	if h != nil {
		h.closePipes()
		h.before.close()
	}
}

// drainPoll is how often Drain looks whether peers that were about to open a session
// have, and whether the successor reads again.
const drainPoll = 20 * time.Millisecond

// Drainer is an endpoint that has handed its sockets over, as Drain needs it.
type Drainer interface {
	Opening() bool                          // sessions are about to be offered to Accept
	Refuse()                                // Accept fails once its sessions were taken
	Emptied() (hold time.Duration, ok bool) // no session is left; for how long it must answer
	Shut()                                  // closes it
	Closed() <-chan struct{}                // closed when it is
}

// Drain runs from the first handover until the endpoint is closed, which it does when the
// last session has ended. The successor hears of each session that ends.
func (d *Departure) Drain(e Drainer) {
	defer close(d.drained)
	poll := time.NewTicker(drainPoll)
	defer poll.Stop()
	for {
		opening := e.Opening()
		if !opening {
			e.Refuse()
		}
		if d.writeNotes() || opening {
			poll.Reset(drainPoll)
		} else {
			poll.Stop()
		}
		if hold, ok := e.Emptied(); ok {
			timer := time.NewTimer(hold)
			select {
			case <-timer.C:
			case <-e.Closed():
			}
			timer.Stop()
			e.Shut()
		}
		select {
		case <-d.wake:
		case <-poll.C:
		case <-e.Closed():
			e.Refuse()
			d.leaveSuccessor()
			return
		}
	}
}
