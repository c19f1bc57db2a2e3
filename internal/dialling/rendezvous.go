// Package dialling decides which of several attempts becomes a session: of the addresses
// of one host, and of two ends that dial each other.
package dialling

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// How two ends that dial each other come to one session (simultaneous open, RFC 9293
// §3.5; WIRE.md §5.1). Each end dials a session of its own, and sends a random number
// with its HELLO. The end with the greater number is the one that has dialled (compare
// the tie-breaker of ICE, RFC 8445 §7.3.1.1): it drops what the other dials, and the
// other accepts its session.
//
// It has no clock and sends nothing. A is the type of addresses, S the type of sessions.

// MaxHalfOpen is how many sessions of the peer's an open has half open: what claims to
// be of the peer may be forged.
const MaxHalfOpen = 4

// Hello is a packet with TIEBREAKER.
type Hello struct {
	Conv, Token uint32 // Token is of HELLO
	Tie         uint64 // the number of TIEBREAKER
	Opens       bool   // it has HELLO; otherwise it only shows that it arrives
	Asks        bool   // it has a challenge of the address that this end sends from
	Shows       bool   // it answers the challenge of the address that it comes from
	Size        int    // of the UDP payload, in bytes
}

// Action is what an end does with a Hello.
type Action uint8

const (
	Ignore Action = iota // it counts for nothing
	Greet                // this end dials: its HELLO leaves now
	Accept               // the peer dials: its HELLO opens a session
	Move                 // the HELLO is of Verdict.Session, and comes from another address
	Again                // the ends have drawn the same: this one dials a session again
)

// Verdict is the decision on a Hello.
type Verdict[A, S comparable] struct {
	Do      Action
	Aim     bool        // for Greet: the HELLOs leave for this address from now on
	Tell    bool        // TIEBREAKER leaves for the sender now
	Ask     bool        // with a challenge, as nothing has shown yet that the peer is there
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
	dialled  *dialled[S] // the session that this end dials now; nil: it has drawn none
	probes   uint32      // the conversation id of TIEBREAKER alone, which no session has
	tie      uint64      // drawn last, which the peers of accepted have judged by
	inherits bool        // the first session that is dialled has tie, too
	accepted []half[A, S]
	decided  func() // called once won or err is set by an accepted session
	won      S      // the session that has come of it; zero: none yet
	err      error  // why none will; nil: one may
	over     bool
}

// path is what is known of an address of the peer.
//
// Anybody can send in the name of an address, and the peer can name one that is not its
// own. So what leaves for an address before it has answered a challenge is paid for by
// what has come from it (anti-amplification limit, RFC 9000 §8.1). Not limited are what
// any dial sends to its address, and the probes.
type path[A comparable] struct {
	addr   A
	next   time.Duration // when TIEBREAKER alone leaves for it next
	wait   time.Duration // from then to the time after
	quiet  time.Duration // until when it does not answer TIEBREAKER alone, nor asks again
	told   time.Duration // until when it answers no challenge
	heard  bool          // something has come from it, and it has answered a challenge
	gone   bool          // it is, or may be, of another peer, and counts for nothing
	shown  bool          // the address has answered a challenge
	credit int           // bytes that may leave for it otherwise, because of packets
}

// dialled is a session that this end dials. It does not change: nothing finds it by a
// number that is not drawn yet.
type dialled[S comparable] struct {
	s    S
	conv uint32
	tie  uint64 // of its HELLO
}

// half is a session that the peer has dialled.
type half[A, S comparable] struct {
	s           S
	conv, token uint32
	at          A // where its packets go
}

// Table has the opens of an endpoint. It is safe for concurrent use.
type Table[A, S comparable] struct {
	N     atomic.Int32 // how many there are; only the table changes it
	mu    sync.Mutex   // guards the rest; no other lock is taken while it is held
	opens []*Open[A, S]
}

// Begin adds an open with a peer of several addresses, the first of which is the one that
// is dialled. It returns nil if another open dials that. A peer may name addresses that
// are others': a further address is left out if another open dials it. One that is a
// further address of two is left out of both, as nobody can tell whose it is. Half-open
// sessions at the address that is dialled are of this open from now on: Inherits. drop is
// the other sessions that other opens have at such addresses: they have to go. probes is
// the conversation id of TIEBREAKER alone. decided is called, without a lock, when an
// accepted session decides the open.
func (t *Table[A, S]) Begin(addrs []A, probes uint32, decided func()) (o *Open[A, S], drop []S) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if other, i := t.ofLocked(addrs[0]); other != nil && i == 0 {
		return nil, nil
	}
	o = &Open[A, S]{table: t, probes: probes, decided: decided}
	for i, a := range addrs {
		other, halves, drops := t.claimLocked(a)
		if drop = append(drop, drops...); i == 0 && len(halves) > 0 {
			o.accepted, o.tie, o.inherits = halves, other.tie, true
		} else {
			drop = append(drop, sessionsOf(halves)...)
		}
		o.paths = append(o.paths, path[A]{addr: a, wait: FirstWait, gone: i > 0 && other != nil})
	}
	t.opens = append(t.opens, o)
	t.N.Add(1)
	return o, drop
}

// Claim tells that a call other than an open dials an address. It returns the
// sessions that opens have there, which have to go: see Begin.
func (t *Table[A, S]) Claim(a A) (drop []S) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, halves, drop := t.claimLocked(a)
	return append(drop, sessionsOf(halves)...)
}

// claimLocked takes an address away from the open of which it is a further one. It
// returns the open with that address, the half-open sessions there, and a dialled one.
func (t *Table[A, S]) claimLocked(a A) (o *Open[A, S], halves []half[A, S], dialled []S) {
	o, i := t.ofLocked(a)
	if o == nil || i == 0 {
		return o, nil, nil
	}
	o.paths[i].gone = true
	if o.isDecided() {
		return o, nil, nil
	}
	there := func(h half[A, S]) bool { return h.at == a }
	for _, h := range o.accepted {
		if there(h) {
			halves = append(halves, h)
		}
	}
	o.accepted = slices.DeleteFunc(o.accepted, there)
	if o.aim == i && o.dialled != nil {
		dialled = append(dialled, o.dialled.s)
		o.dialled, o.aim = nil, 0
	}
	return o, halves, dialled
}

// sessionsOf returns the sessions of halves.
func sessionsOf[A, S comparable](halves []half[A, S]) (all []S) {
	for _, h := range halves {
		all = append(all, h.s)
	}
	return all
}

// Inherits returns the number that the first session of this end has to have in its
// HELLO. ok is false if that is to be drawn. An open with sessions that were of another
// keeps the number that their peer has judged by: so both ends agree on who dials.
func (o *Open[A, S]) Inherits() (tie uint64, ok bool) {
	o.table.mu.Lock()
	defer o.table.mu.Unlock()
	ok = o.inherits
	o.inherits = false
	return o.tie, ok
}

// Has reports whether a path, by its number, counts still.
func (o *Open[A, S]) Has(path int) bool {
	o.table.mu.Lock()
	defer o.table.mu.Unlock()
	return !o.paths[path].gone
}

// Dial tells which session this end dials now, with which number in its HELLO.
func (o *Open[A, S]) Dial(s S, conv uint32, tie uint64) {
	o.table.mu.Lock()
	defer o.table.mu.Unlock()
	o.dialled, o.tie, o.aim = &dialled[S]{s, conv, tie}, tie, 0
}

// Dials returns what Dial has told, and the conversation id of TIEBREAKER alone. ok is
// false before that, and once the call has returned that dials the session.
func (o *Open[A, S]) Dials() (s S, probes uint32, tie uint64, ok bool) {
	o.table.mu.Lock()
	defer o.table.mu.Unlock()
	if d := o.dialled; d != nil {
		return d.s, o.probes, d.tie, true
	}
	return s, 0, 0, false
}

// Dialled tells that the call that dials s has returned, connected or not. It returns the
// session that has come of the open, or why none will.
func (o *Open[A, S]) Dialled(s S, connected bool) (won S, err error) {
	o.table.mu.Lock()
	defer o.table.mu.Unlock()
	if connected = connected && o.dialled != nil && o.dialled.s == s; connected && !o.isDecided() {
		o.won = s
	}
	o.dialled = nil
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
		if i := o.pathOf(a); i >= 0 {
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
	p := &o.paths[i]
	p.shown = p.shown || h.Shows
	own := o.dialled
	if own == nil {
		return v // which end dials is not known before this end's HELLO leaves
	}
	v.Session = own.s
	switch {
	case h.Tie == own.tie && (h.Conv == own.conv || h.Conv == o.probes): // our own, which has come back
		return v
	case h.Tie == own.tie || h.Conv == own.conv:
		v.Do = Again
	case h.Tie < own.tie:
		v.Do, v.Aim = Greet, o.hear(i, now)
	case h.Opens:
		if o.judgeHello(from, &h, &v); v.Do == Accept {
			return v // what may leave for the address is now the session's to say
		}
	}
	p.receive(h.Size)
	v.Tell = o.mayTell(p, &h, now)
	v.Ask = v.Tell && !p.shown
	return v
}

// judgeHello decides on a HELLO of a peer that has drawn the greater number.
func (o *Open[A, S]) judgeHello(from A, h *Hello, v *Verdict[A, S]) {
	for i := range o.accepted {
		if other := &o.accepted[i]; other.conv == h.Conv && other.token == h.Token {
			if o.move(other, from) {
				v.Do, v.Session = Move, other.s
			}
			return
		}
	}
	v.Do, v.Crowded = Accept, len(o.accepted) > 0
}

// move reports whether a half-open session moves to an address, which has to have
// answered a challenge: it may send what its credit allows, and the peer has earned that
// elsewhere.
func (o *Open[A, S]) move(h *half[A, S], to A) bool {
	i := o.pathOf(to)
	if i < 0 || !o.paths[i].shown && h.at != to {
		return false
	}
	h.at = to
	return true
}

// pathOf returns the number of the path to an address; -1: there is none.
func (o *Open[A, S]) pathOf(a A) int {
	return slices.IndexFunc(o.paths, func(p path[A]) bool { return p.addr == a && !p.gone })
}

// hear tells that something has come by a path. It reports whether HELLO leaves by that
// from now on: by the first that something has come by, or a better one. It has to have
// answered a challenge.
func (o *Open[A, S]) hear(i int, now time.Duration) (aim bool) {
	if !o.paths[i].shown {
		return false
	}
	if aim = i != o.aim && (!o.paths[o.aim].heard || i < o.aim && i > 0); aim {
		o.aim, o.aimed = i, now
	}
	o.paths[i].heard = true
	return aim
}

// mayTell reports whether TIEBREAKER leaves by a path, as a packet has come: it answers a
// challenge; the peer dials, and may not know the path yet; or there is a challenge to
// ask.
func (o *Open[A, S]) mayTell(p *path[A], h *Hello, now time.Duration) bool {
	switch {
	case h.Asks && now >= p.told:
		p.told = now + answerGap
	case (!p.shown || !h.Opens && h.Tie > o.tie) && now >= p.quiet:
	default:
		return false
	}
	p.quiet = now + answerGap
	return true
}

// Take takes n bytes from what may leave for an address. It reports false, and takes
// nothing, if that is less.
func (t *Table[A, S]) Take(a A, n int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	o, i := t.ofLocked(a)
	if o == nil || !o.paths[i].shown && o.paths[i].credit < n {
		return false
	}
	o.paths[i].credit -= min(n, o.paths[i].credit)
	return true
}

// Limits of what leaves for an address that has not shown itself.
const (
	factor    = 3       // bytes for each byte that has come
	maxCredit = 1 << 20 // the most bytes that were not used yet
)

// receive tells that a packet of n bytes has come by a path.
func (p *path[A]) receive(n int) { p.credit = min(p.credit+factor*n, maxCredit) }

// Probes of addresses that HELLO does not leave for.
const (
	MaxCandidates = 16                     // addresses of a peer besides the first
	Pace          = 20 * time.Millisecond  // the least time between two probes of an open (Ta, RFC 8445 §14.2)
	FirstWait     = 200 * time.Millisecond // from the first probe of an address to the second
	MostWait      = 500 * time.Millisecond // from one to the next
	AimTime       = time.Second            // HELLO leaves by another path if nothing has come of it for so long
	answerGap     = 50 * time.Millisecond  // the least time between TIEBREAKER and an answer by one path
)

// Probe returns the path by which TIEBREAKER leaves now, with a challenge if ask is set,
// and the one by which HELLO does from now on; -1: none. It is to be called again after
// wait.
func (o *Open[A, S]) Probe(now time.Duration) (probe int, ask bool, aim int, wait time.Duration) {
	o.table.mu.Lock()
	defer o.table.mu.Unlock()
	probe, aim, wait = -1, -1, MostWait
	for i := range o.paths {
		p := &o.paths[i]
		if i == o.aim || p.gone {
			continue // HELLO leaves by it
		}
		if wait = min(wait, p.next-now); now >= p.next && (probe < 0 || p.next < o.paths[probe].next) {
			probe = i // the one that has waited longest
		}
	}
	if probe >= 0 {
		p := &o.paths[probe]
		p.next, p.wait, p.quiet = now+p.wait, min(2*p.wait, MostWait), now+answerGap
		ask = !p.shown
	}
	for n := 1; n < len(o.paths) && o.dialled != nil && now >= o.aimed+AimTime && aim < 0; n++ {
		if i := (o.aim + n) % len(o.paths); o.paths[i].heard && !o.paths[i].gone {
			o.aim, o.aimed, aim = i, now, i
		}
	}
	return probe, ask, aim, max(wait, Pace)
}

// Elsewhere decides on a packet without TIEBREAKER from another address of the peer than
// its session's: the one that this end dials, or a half-open one whose HELLO has come by
// a path that the peer has left. Its session moves there if the address has answered a
// challenge, and the verdict is Move. Otherwise the address is asked, and the packet
// counts for nothing. mine is false if it is of no such session.
func (t *Table[A, S]) Elsewhere(from A, conv uint32, size int, now time.Duration) (v Verdict[A, S], mine bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o, i := t.ofLocked(from)
	if o == nil || o.isDecided() {
		return v, false
	}
	var to *half[A, S]
	if o.dialled == nil || o.dialled.conv != conv {
		n := slices.IndexFunc(o.accepted, func(h half[A, S]) bool { return h.conv == conv })
		if n < 0 {
			return v, false
		}
		to = &o.accepted[n]
	}
	p := &o.paths[i]
	p.receive(size)
	switch v.Open = o; {
	case !p.shown:
		v.Tell = o.dialled != nil && o.mayTell(p, &Hello{Opens: true}, now)
		v.Ask = v.Tell
	case to != nil && o.move(to, from):
		v.Do, v.Session = Move, to.s
	case to == nil:
		o.aim = i
		v.Do, v.Session = Move, o.dialled.s
	}
	return v, true
}

// Add adds a session that a HELLO for which the verdict was Accept has opened. ok is
// false if the open has been decided since, or has no such address any more. There are
// MaxHalfOpen at a time: drop is the oldest, which has to go.
func (o *Open[A, S]) Add(s S, from A, h Hello) (drop S, ok bool) {
	o.table.mu.Lock()
	defer o.table.mu.Unlock()
	if o.isDecided() || o.pathOf(from) < 0 {
		return drop, false
	}
	if len(o.accepted) >= MaxHalfOpen {
		drop = o.accepted[0].s
		o.accepted = slices.Delete(o.accepted, 0, 1)
	}
	o.accepted = append(o.accepted, half[A, S]{s, h.Conv, h.Token, from})
	return drop, true
}

// Remove forgets a session that has ended.
func (t *Table[A, S]) Remove(s S) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range t.opens {
		o.accepted = slices.DeleteFunc(o.accepted, func(h half[A, S]) bool { return h.s == s })
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
		if slices.ContainsFunc(o.accepted, func(h half[A, S]) bool { return h.s == s }) {
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
