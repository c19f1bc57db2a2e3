// Package opening has the signals of a session that are repeated until the peer answers
// them, and says when: those that open it, its end, and a sign of life (WIRE.md §5).
//
// It is told what happens, and when. It has no clock: times are since any epoch.
package opening

import (
	"math/bits"
	"time"

	"github.com/arqnet/kcp/internal/wire"
)

const (
	// FirstHello is the time from the first HELLO to the second. Other requests wait for
	// one RTO, within MinWait and MaxWait; all waits then double.
	FirstHello = 200 * time.Millisecond
	MinWait    = 50 * time.Millisecond
	MaxWait    = 2 * time.Second
	// EagerWait is the most between two of the first EagerHellos HELLOs, while nothing
	// has arrived: a short outage must not make Dial fail.
	EagerWait   = 500 * time.Millisecond
	EagerHellos = 20
	// HelloGap is the least time between two HELLOs. Without it, forged cookies would
	// cause more to be sent than has arrived.
	HelloGap = 50 * time.Millisecond
	// MaxCookies is how many cookies are answered at once nevertheless.
	MaxCookies = 4
)

// Kind is a set of kinds of requests, or one. Those that are due at the same time are
// sent in this order.
type Kind uint8

const (
	Hello   Kind = 1 << iota
	Confirm      // the answer to WELCOME
	Finish       // FIN or CLOSE
	Ping
)

// Kinds is all kinds.
var Kinds = [...]Kind{Hello, Confirm, Finish, Ping}

// Request is one signal.
type Request struct {
	next   time.Duration // when it is sent next
	Signal wire.Signal   // also once it is answered
	wait   uint16        // from the next transmission to the one after it, in milliseconds
	Tries  uint8         // transmissions; stays at 255
}

// Role is what the session is for its application.
type Role uint8

const (
	Accepted Role = iota // not offered to Accept yet
	Offered              // to Accept
	Dialled
	Dialling // a call that dials waits, and its time-out replaces all others
	Quiet    // dialled without a word before the first data
)

// Peer is what is known of the peer.
type Peer uint8

const (
	Unknown  Peer = iota
	Legacy        // without signals, such as kcp-go; a signal of the peer puts that right
	Extended      // an endpoint of this package: it has sent HELLO
	Welcomed      // its WELCOME has come, which echoes the token of this end
)

// State is what the ends of a session know of each other, and the requests of this end.
type State struct {
	HelloAt    time.Duration // when HELLO was last sent
	all        [len(Kinds)]Request
	Unanswered Kind  // the requests that are active: they wait for their answers, and end with them
	cookies    uint8 // that were answered at once
	Role       Role
	Peer       Peer
	Reached    bool // a valid packet has arrived from the peer
	Confirmed  bool // the peer has shown the token of this end in a request
}

// Of returns the request of a kind, which need not be active.
func (l *State) Of(k Kind) *Request { return &l.all[bits.TrailingZeros8(uint8(k))] }

// Start makes a request active. It is first sent at a time, and then after wait.
func (l *State) Start(k Kind, s wire.Signal, at, wait time.Duration) {
	*l.Of(k) = Request{Signal: s, wait: uint16(wait.Milliseconds()), next: at}
	l.Unanswered |= k
}

// Asked reports whether a request was sent, and waits for its answer.
func (l *State) Asked(k Kind) bool { return l.Unanswered&k != 0 && l.Of(k).Tries > 0 }

// Due reports whether a request is to be sent.
func (l *State) Due(k Kind, now time.Duration) bool {
	return l.Unanswered&k != 0 && now >= l.Of(k).next
}

// Next returns when the next request is to be sent; 0: none is active.
func (l *State) Next() (next time.Duration) {
	for _, k := range Kinds {
		if at := max(l.Of(k).next, 1); l.Unanswered&k != 0 && (next == 0 || at < next) {
			next = at
		}
	}
	return next
}

// Sent tells that a request is sent. It is sent again after its wait, which doubles up to
// MaxWait, but after most at the latest.
func (l *State) Sent(k Kind, now, most time.Duration) {
	q := l.Of(k)
	if k == Hello {
		l.HelloAt = now
		if !l.Reached && q.Tries < EagerHellos {
			most = min(most, EagerWait)
		}
	}
	if k == Confirm && l.Role == Dialling && !l.Reached {
		most = min(most, EagerWait) // the call waits for the answer: the peer checks a certificate
	}
	q.Tries = max(q.Tries, q.Tries+1)
	q.next = now + min(time.Duration(q.wait)*time.Millisecond, most)
	q.wait = max(q.wait, min(2*q.wait, uint16(MaxWait.Milliseconds())))
}

// Again has a request that is active sent after wait, once more without back-off.
func (l *State) Again(k Kind, now, wait time.Duration) {
	q := l.Of(k)
	q.next, q.wait = now+wait, uint16(wait.Milliseconds())
}

// Hurry has a request that is active sent at a time, in place of the one it is due at.
func (l *State) Hurry(k Kind, at time.Duration) { l.Of(k).next = at }

// HelloTime returns after what time a dial sends HELLO once more that it has sent n
// times, while nothing arrives.
func HelloTime(n int) time.Duration {
	at, wait := time.Duration(0), FirstHello
	for range min(n, 255) {
		at += wait
		wait = min(2*wait, EagerWait)
	}
	return at
}

// Restart makes HELLO active again, whose answers may be lost.
func (l *State) Restart(now time.Duration) {
	l.Start(Hello, l.Of(Hello).Signal, max(now, l.HelloAt+HelloGap), FirstHello)
}

// Cookie tells that a cookie has arrived, which HELLO is to show. Some are answered at
// once, and others after a time. If HELLO is large, forged cookies must not cause more of
// it.
func (l *State) Cookie(now time.Duration, large bool) {
	gap := HelloGap
	if large {
		gap = EagerWait
	}
	at := max(now, l.HelloAt+gap)
	if l.cookies < MaxCookies {
		l.cookies++
		at = now
	}
	l.Hurry(Hello, at)
}
