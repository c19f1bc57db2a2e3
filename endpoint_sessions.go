package kcp

import (
	"iter"
	"slices"
)

// sessionSlots holds each session in a slot of its own, so that all of them can
// be copied at the price of a memmove. A map of 100 000 sessions would be locked
// for milliseconds. Endpoint.mu guards it.
type sessionSlots struct {
	conns []*Conn  // nil entries are free
	free  []uint32 // indices of those
}

// add puts c into a slot. A session that was the last to be removed gets its
// slot back.
func (s *sessionSlots) add(c *Conn) {
	if last := len(s.free) - 1; last >= 0 {
		c.closing.slot, s.free = s.free[last], s.free[:last]
		s.conns[c.closing.slot] = c
		return
	}
	c.closing.slot = uint32(len(s.conns))
	s.conns = append(s.conns, c)
}

// remove empties the slot of c. It releases the memory of a table that was
// large and is empty, and reports whether that is so.
func (s *sessionSlots) remove(c *Conn) (emptied bool) {
	s.conns[c.closing.slot] = nil
	s.free = append(s.free, c.closing.slot)
	if len(s.free) == len(s.conns) && len(s.conns) > slotsKept {
		*s = sessionSlots{}
		return true
	}
	return false
}

// all returns the sessions, in an order that depends on nothing but how they came
// and went.
func (s *sessionSlots) all() []*Conn {
	return slices.DeleteFunc(slices.Clone(s.conns), func(c *Conn) bool { return c == nil })
}

// slotsKept is how many slots an empty table keeps.
const slotsKept = 64

// Sessions returns an iterator over the sessions that are open when the
// iteration begins: those that were dialled, that Accept has returned, or that
// it could return. Each is visited once; it may have ended by then. Sessions
// whose peers' addresses are not validated are not among them (RFC 9000 §8).
//
// No lock is held while the body of the loop runs, so it may call any method.
// Memory of 8 bytes for each session is taken while the iteration runs.
func (e *Endpoint) Sessions() iter.Seq[*Conn] {
	return func(yield func(*Conn) bool) {
		e.mu.RLock()
		conns := slices.Clone(e.table.slots.conns)
		e.mu.RUnlock()
		for _, c := range conns {
			if c != nil && c.wasOffered() && !yield(c) {
				return
			}
		}
	}
}

// sessionTally counts the sessions of an endpoint. Endpoint.mu guards it.
type sessionTally struct {
	peak              int    // most sessions at a time
	dialled, accepted uint64 // opened so far
	ended             EndedSessions
	totals            SessionTotals // of the ended sessions
}

// Totals returns the sums over all sessions of the endpoint, those that have
// ended included, so no figure ever falls. It takes the lock of each session
// for a moment, and is thus as costly as Conn.Stats of all of them; the figures
// of EndpointStats cost the same for any number of sessions.
func (e *Endpoint) Totals() SessionTotals {
	e.mu.RLock()
	conns, totals := slices.Clone(e.table.slots.conns), e.table.tally.totals
	e.mu.RUnlock()
	for _, c := range conns {
		if c != nil { // if it has ended since, it is not in totals yet
			c.total(&totals)
		}
	}
	return totals
}

// total locks c.mu and adds the session's figures to t.
func (c *Conn) total(t *SessionTotals) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addTo(t)
}
