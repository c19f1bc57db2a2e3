// Package rendezvous decides how two ends that dial each other come to one session
// (simultaneous open, RFC 9293 §3.5; WIRE.md §5.1). Each end dials a session of its
// own, and sends a random number with its HELLO. The end with the greater number is the
// one that has dialled (compare the tie-breaker of ICE, RFC 8445 §7.3.1.1): it drops what
// the other dials, and the other accepts its session.
//
// It has no clock and sends nothing. A is the type of addresses, S the type of sessions.
package rendezvous

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// MaxHalfOpen is how many sessions of the peer's an open has half open: what claims to
// be of the peer may be forged.
const MaxHalfOpen = 4

// Hello is a packet with TIEBREAKER.
type Hello struct {
	Conv, Token uint32 // Token is of HELLO
	Tie         uint64 // the number of TIEBREAKER
	Opens       bool   // it has HELLO; otherwise it only shows that it arrives
}

// Action is what an end does with a Hello.
type Action uint8

const (
	Ignore Action = iota // it counts for nothing
	Greet                // this end dials: its HELLO leaves now
	Answer               // the peer dials, and may not know this path yet: TIEBREAKER leaves now
	Accept               // the peer dials: its HELLO opens a session
	Move                 // the HELLO is of Verdict.Session, and comes from another address
	Again                // the ends have drawn the same: this one dials a session again
)

// Verdict is the decision on a Hello.
type Verdict[A, S comparable] struct {
	Do      Action
	Aim     bool        // for Greet: the HELLOs leave for this address from now on
	Crowded bool        // for Accept: another session is half open, so the peer has to show its address
	Open    *Open[A, S] // nil: none expects the address
	Session S           // that this end dials; for Move, the one accepted before
}

// Open is a simultaneous open of this end. The lock of its Table guards it.
type Open[A, S comparable] struct {
	table    *Table[A, S]
	paths    []path[A] // the first, and then the better ones first
	aim      int       // the path that HELLO leaves by
	aimed    time.Duration
	dialled  S // the session that this end dials now
	conv     uint32
	tie      uint64 // of its HELLO
	drawn    bool   // tie is of a session that is being dialled
	accepted []half[S]
	decided  func() // called once won or err is set by an accepted session
	won      S      // the session that has come of it; zero: none yet
	err      error  // why none will; nil: one may
	over     bool
}

// path is what is known of an address of the peer.
type path[A comparable] struct {
	addr  A
	next  time.Duration // when TIEBREAKER alone leaves for it next
	wait  time.Duration // from then to the time after
	quiet time.Duration // until when it does not answer
	heard bool          // something has come from it
}

// half is a session that the peer has dialled.
type half[S comparable] struct {
	s           S
	conv, token uint32
}

// Table has the opens of an endpoint. It is safe for concurrent use.
type Table[A, S comparable] struct {
	N     atomic.Int32 // how many there are; only the table changes it
	mu    sync.Mutex   // guards the rest; no other lock is taken while it is held
	opens []*Open[A, S]
}

// Begin adds an open with a peer of several addresses. It returns nil if one of them is
// of another open. decided is called, without a lock, when an accepted session decides
// it.
func (t *Table[A, S]) Begin(addrs []A, decided func()) *Open[A, S] {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := &Open[A, S]{table: t, decided: decided}
	for _, a := range addrs {
		if other, _ := t.ofLocked(a); other != nil {
			return nil
		}
		o.paths = append(o.paths, path[A]{addr: a, wait: FirstWait})
	}
	t.opens = append(t.opens, o)
	t.N.Add(1)
	return o
}

// Dial tells which session this end dials now, with which number in its HELLO.
func (o *Open[A, S]) Dial(s S, conv uint32, tie uint64) {
	o.table.mu.Lock()
	defer o.table.mu.Unlock()
	o.dialled, o.conv, o.tie, o.drawn, o.aim = s, conv, tie, true, 0
}

// Dials returns what Dial has told.
func (o *Open[A, S]) Dials() (s S, conv uint32, tie uint64) {
	o.table.mu.Lock()
	defer o.table.mu.Unlock()
	return o.dialled, o.conv, o.tie
}

// Dialled tells that the call that dials s has returned, connected or not. It returns the
// session that has come of the open, or why none will.
func (o *Open[A, S]) Dialled(s S, connected bool) (won S, err error) {
	o.table.mu.Lock()
	defer o.table.mu.Unlock()
	if connected && !o.isDecided() {
		o.won = s
	}
	o.drawn = connected
	return o.won, o.err
}

// isDecided reports whether nothing more comes of the open.
func (o *Open[A, S]) isDecided() bool {
	var none S
	return o.over || o.won != none || o.err != nil
}

// ofLocked returns the open with a peer at an address, and the number of the path; nil:
// there is none.
func (t *Table[A, S]) ofLocked(a A) (*Open[A, S], int) {
	for _, o := range t.opens {
		if i := slices.IndexFunc(o.paths, func(p path[A]) bool { return p.addr == a }); i >= 0 {
			return o, i
		}
	}
	return nil, 0
}

// Judge decides on a packet from an address.
func (t *Table[A, S]) Judge(from A, h Hello, now time.Duration) (v Verdict[A, S]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o, i := t.ofLocked(from)
	if v.Open = o; o == nil || o.isDecided() {
		return v
	}
	v.Session = o.dialled
	switch {
	case !o.drawn: // which end dials is not known before this end's HELLO leaves
	case h.Tie == o.tie && h.Conv == o.conv: // our own, which has come back
	case h.Tie == o.tie || h.Conv == o.conv:
		v.Do = Again
	case h.Tie < o.tie:
		v.Do, v.Aim = Greet, o.hear(i, now)
	case !h.Opens && !o.mayProbe(i, now):
	case !h.Opens:
		v.Do = Answer
	default:
		v.Do = Accept
		for _, other := range o.accepted {
			if other.conv == h.Conv && other.token == h.Token {
				v.Do, v.Session = Move, other.s
				return v
			}
		}
		v.Crowded = len(o.accepted) > 0
	}
	return v
}

// hear tells that something has come by a path. It reports whether HELLO leaves by that
// from now on: by the first that something has come by, or a better one.
func (o *Open[A, S]) hear(i int, now time.Duration) (aim bool) {
	if aim = i != o.aim && (!o.paths[o.aim].heard || i < o.aim && i > 0); aim {
		o.aim, o.aimed = i, now
	}
	o.paths[i].heard = true
	return aim
}

// Probes of addresses that HELLO does not leave for.
const (
	MaxCandidates = 16                     // addresses of a peer besides the first
	Pace          = 20 * time.Millisecond  // the least time between two probes of an open (Ta, RFC 8445 §14.2)
	FirstWait     = 200 * time.Millisecond // from the first probe of an address to the second
	MostWait      = 500 * time.Millisecond // from one to the next
	AimTime       = time.Second            // HELLO leaves by another path if nothing has come of it for so long
	answerGap     = 50 * time.Millisecond  // the least time between TIEBREAKER and an answer by one path
)

// mayProbe reports whether TIEBREAKER may leave by a path, as one has come.
func (o *Open[A, S]) mayProbe(i int, now time.Duration) bool {
	p := &o.paths[i]
	if now < p.quiet {
		return false
	}
	p.quiet = now + answerGap
	return true
}

// Probe returns the path by which TIEBREAKER leaves now, and the one by which HELLO does
// from now on; -1: none. It is to be called again after wait.
func (o *Open[A, S]) Probe(now time.Duration) (probe, aim int, wait time.Duration) {
	o.table.mu.Lock()
	defer o.table.mu.Unlock()
	probe, aim, wait = -1, -1, MostWait
	for i := range o.paths {
		p := &o.paths[i]
		if i == o.aim {
			continue // HELLO leaves by it
		}
		if wait = min(wait, p.next-now); now >= p.next && (probe < 0 || p.next < o.paths[probe].next) {
			probe = i // the one that has waited longest
		}
	}
	if probe >= 0 {
		p := &o.paths[probe]
		p.next, p.wait, p.quiet = now+p.wait, min(2*p.wait, MostWait), now+answerGap
	}
	for n := 1; n < len(o.paths) && now >= o.aimed+AimTime && aim < 0; n++ {
		if i := (o.aim + n) % len(o.paths); o.paths[i].heard {
			o.aim, o.aimed, aim = i, now, i
		}
	}
	return probe, aim, max(wait, Pace)
}

// Elsewhere returns the session of an open of which a packet without TIEBREAKER has come
// from another address of the peer: the one that this end dials, or a half-open one whose
// HELLO has come by a path that the peer has left. ok is false if it is of none.
func (t *Table[A, S]) Elsewhere(from A, conv uint32) (s S, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o, i := t.ofLocked(from)
	if o == nil || o.isDecided() {
		return s, false
	}
	if o.conv == conv {
		o.aim = i
		return o.dialled, true
	}
	for _, h := range o.accepted {
		if h.conv == conv {
			return h.s, true
		}
	}
	return s, false
}

// Add adds a session that a HELLO for which the verdict was Accept has opened. ok is
// false if the open has been decided since. There are MaxHalfOpen at a time: drop is the
// oldest, which has to go.
func (o *Open[A, S]) Add(s S, h Hello) (drop S, ok bool) {
	o.table.mu.Lock()
	defer o.table.mu.Unlock()
	if o.isDecided() {
		return drop, false
	}
	if len(o.accepted) >= MaxHalfOpen {
		drop = o.accepted[0].s
		o.accepted = slices.Delete(o.accepted, 0, 1)
	}
	o.accepted = append(o.accepted, half[S]{s, h.Conv, h.Token})
	return drop, true
}

// Remove forgets a session that has ended.
func (t *Table[A, S]) Remove(s S) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range t.opens {
		o.accepted = slices.DeleteFunc(o.accepted, func(h half[S]) bool { return h.s == s })
	}
}

// Expects reports whether a session was accepted for an open.
func (t *Table[A, S]) Expects(s S) bool {
	expected, _ := t.decide(s, func(*Open[A, S]) bool { return false })
	return expected
}

// Offer tells that the peer of an accepted session has confirmed it. expected reports
// whether the session is of an open, and won whether it is what has come of that.
func (t *Table[A, S]) Offer(s S) (expected, won bool) {
	return t.decide(s, func(o *Open[A, S]) bool { o.won = s; return true })
}

// Fail tells that an accepted session has failed. It reports whether that is of an open,
// which fails too if the peer has shown its address.
func (t *Table[A, S]) Fail(s S, shown bool, err error) (expected bool) {
	expected, _ = t.decide(s, func(o *Open[A, S]) bool {
		if shown {
			o.err = err
		}
		return shown
	})
	return expected
}

// decide calls by for the open that a session was accepted for, unless that is decided.
// by reports whether it now is. expected reports whether there is such an open, and won
// whether the session is what has come of it.
func (t *Table[A, S]) decide(s S, by func(*Open[A, S]) bool) (expected, won bool) {
	var decided func()
	defer func() {
		if decided != nil {
			decided()
		}
	}()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range t.opens {
		if slices.ContainsFunc(o.accepted, func(h half[S]) bool { return h.s == s }) {
			if !o.isDecided() && by(o) {
				decided = o.decided
			}
			return true, o.won == s
		}
	}
	return false, false
}

// End ends an open, calls drop for the sessions that have not come of it, without a lock,
// and forgets it. Meanwhile none of them can.
func (o *Open[A, S]) End(drop func([]S)) {
	t := o.table
	t.mu.Lock()
	o.over = true
	var late []S
	for _, h := range o.accepted {
		if h.s != o.won {
			late = append(late, h.s)
		}
	}
	t.mu.Unlock()
	defer func() { // even if code of the application's panics
		t.mu.Lock()
		defer t.mu.Unlock()
		t.opens = slices.DeleteFunc(t.opens, func(other *Open[A, S]) bool { return other == o })
		t.N.Add(-1)
	}()
	drop(late)
}
