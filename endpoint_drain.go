package kcp

import (
	"cmp"
	"net"
	"time"

	"github.com/arqnet/kcp/internal/takeover"
)

// What follows a handover: the successor hears of each session that ends, and the
// endpoint closes with the last one.

// drainHold is how long at most an endpoint whose sessions have keys of their own answers
// in TIME-WAIT after the last one has ended. Its successor answers for others.
const drainHold = 800 * time.Millisecond

// over is the last note to a successor.
var over = takeover.Note{Kind: takeover.Over}

// drainPoll is how often drain looks whether peers that were about to open a session
// have, and whether the successor reads again.
const drainPoll = 20 * time.Millisecond

// tellLocked queues a note for the successor, if there is one. Endpoint.mu is held.
func (e *Endpoint) tellLocked(n takeover.Note) {
	if e.takeover.left && len(e.takeover.notes) < takeover.MaxOwned {
		e.takeover.notes = append(e.takeover.notes, n)
	}
	if e.takeover.wake != nil {
		e.wakeDrain()
	}
}

// wakeDrain makes drain look again.
func (e *Endpoint) wakeDrain() {
	select {
	case e.takeover.wake <- struct{}{}:
	default:
	}
}

// drain runs from the first handover of l until the endpoint is closed, which it does
// when the last session has ended.
func (e *Endpoint) drain(l *Listener) {
	defer close(e.takeover.drained)
	e.mu.RLock()
	opening := e.table.Sessions()
	e.mu.RUnlock()
	poll := time.NewTicker(drainPoll)
	defer poll.Stop()
	for {
		if opening = stillOpening(opening); len(opening) == 0 {
			l.leave()
		}
		if e.writeNotes() || len(opening) > 0 {
			poll.Reset(drainPoll)
		} else {
			poll.Stop()
		}
		if hold, ok := e.emptied(); ok {
			timer := time.NewTimer(hold)
			select {
			case <-timer.C:
			case <-e.socket.done:
			}
			timer.Stop()
			e.shut(net.ErrClosed)
		}
		select {
		case <-e.takeover.wake:
		case <-poll.C:
		case <-e.socket.done:
			l.leave()
			e.leaveSuccessor()
			return
		}
	}
}

// stillOpening returns those of conns that were not offered to Accept yet, and may be.
func stillOpening(conns []*Conn) (opening []*Conn) {
	for _, c := range conns {
		if c.opening() {
			opening = append(opening, c)
		}
	}
	return opening
}

// emptied reports whether no session is left, and for how long the endpoint must answer
// for the last ones.
func (e *Endpoint) emptied() (hold time.Duration, ok bool) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.table.Len() > 0 {
		return 0, false
	}
	if e.config.TLS != nil || e.protection.Authentic || !e.takeover.left {
		hold = cmp.Or(e.takeover.hold, min(max(0, e.socket.holdUntil-e.now()), drainHold))
	}
	return hold, true
}

// writeNotes writes the notes that are queued, as far as the successor reads. It reports
// whether some are left.
func (e *Endpoint) writeNotes() (left bool) {
	e.mu.Lock()
	notes, h := e.takeover.notes, e.takeover.passing
	e.takeover.notes = nil
	if !e.takeover.left {
		h = nil
	}
	e.mu.Unlock()
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
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.takeover.passing == h && e.takeover.left {
		e.takeover.notes = append(notes, e.takeover.notes...)
	}
	return true
}

// leaveSuccessor tells the successor that no session is left, and lets go of it.
func (e *Endpoint) leaveSuccessor() {
	e.mu.Lock()
	e.takeover.notes = append(e.takeover.notes, over)
	h := e.takeover.passing
	e.mu.Unlock()
	e.writeNotes()
	if h != nil {
		h.closePipes()
		for _, p := range h.retained {
			p.close()
		}
	}
}
