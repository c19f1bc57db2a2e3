// Package flowtable decides how long flows of UDP packets live, much as the connection
// tracking of Linux does. Flows without an answer live shortly, and make room first when
// the table is full, except for those that are so young that the answer may be on its
// way. Then those make room that had one answer, and conversations last. Among flows of
// one kind it is the one that was idle longest.
//
// It has no lock and no clock: the owner's lock guards a table and its entries.
package flowtable

import (
	"cmp"
	"time"

	"github.com/arqnet/kcp/internal/container"
)

// State is what has passed on a flow.
type State uint8

const (
	Unanswered State = iota // packets of one end
	Answered                // packets of both
	Assured                 // the end that began has gone on after an answer
	states
)

const (
	// Grace is how long a flow waits for its answer before it is one without.
	Grace = 3 * time.Second
	// Dormant is how long a conversation is idle before a flow that waits for its answer
	// is worth more.
	Dormant = 30 * time.Second
)

// Entry is the place of a flow in a table. The zero value, with an Owner, is in none.
type Entry[F any] struct {
	Owner *F

	links container.Links[Entry[F]]
	state State
	last  time.Duration // when the last packet passed
}

// State returns what has passed.
func (e *Entry[F]) State() State { return e.state }

// place returns the links of an entry.
func (e *Entry[F]) place() *container.Links[Entry[F]] { return &e.links }

// Table is a table of flows.
type Table[F any] struct {
	limit     int
	lifetimes [states]time.Duration
	idle      [states]container.List[Entry[F]] // by last, the longest idle first
	n         int
}

// New returns a table of up to limit flows, which is 1 at least. Flows without an answer
// live for unanswered after their last packet, others for answered.
func New[F any](limit int, unanswered, answered time.Duration) *Table[F] {
	return &Table[F]{limit: max(limit, 1), lifetimes: [states]time.Duration{unanswered, answered, answered}}
}

// Len returns the number of flows.
func (t *Table[F]) Len() int { return t.n }

// Add adds a flow, whose first packet passes now, and returns the one that it has
// removed to make room, or nil.
func (t *Table[F]) Add(e *Entry[F], now time.Duration) (evicted *Entry[F]) {
	if t.n >= t.limit {
		evicted = t.victim(now)
		t.Remove(evicted)
	}
	e.state, e.last = Unanswered, now
	t.idle[Unanswered].Add((*Entry[F]).place, e, false)
	t.n++
	return evicted
}

// victim returns the flow that makes room now. There is one.
func (t *Table[F]) victim(now time.Duration) *Entry[F] {
	idle := func(state State, d time.Duration) *Entry[F] {
		if e := t.idle[state].First(); e != nil && now-e.last >= d {
			return e
		}
		return nil
	}
	return cmp.Or(idle(Unanswered, Grace), idle(Answered, 0), idle(Assured, Dormant), idle(Unanswered, 0), idle(Assured, 0))
}

// Pass notes that a packet passes: an answer, or one of the end that began. It does
// nothing if the flow is not in the table.
func (t *Table[F]) Pass(e *Entry[F], answer bool, now time.Duration) {
	if !e.links.In() {
		return
	}
	t.idle[e.state].Remove((*Entry[F]).place, e)
	switch {
	case answer && e.state == Unanswered:
		e.state = Answered
	case !answer && e.state == Answered:
		e.state = Assured
	}
	e.last = now
	t.idle[e.state].Add((*Entry[F]).place, e, false)
}

// Remove removes a flow, if it is in the table.
func (t *Table[F]) Remove(e *Entry[F]) {
	if e.links.In() {
		t.idle[e.state].Remove((*Entry[F]).place, e)
		t.n--
	}
}

// Due returns when the first flow is idle for too long. It reports false if there is
// no flow.
func (t *Table[F]) Due() (at time.Duration, ok bool) {
	for state := range t.idle {
		if e := t.idle[state].First(); e != nil {
			if end := e.last + t.lifetimes[state]; !ok || end < at {
				at, ok = end, true
			}
		}
	}
	return at, ok
}

// Expire removes and returns a flow that is idle for too long, or nil.
func (t *Table[F]) Expire(now time.Duration) *Entry[F] {
	for state := range t.idle {
		if e := t.idle[state].First(); e != nil && now-e.last >= t.lifetimes[state] {
			t.Remove(e)
			return e
		}
	}
	return nil
}
