// Package reroute decides when a socket that is connected to one peer asks the system
// for its route to it, and what follows from the answer. To connect a socket fixes the
// address that it sends from. If the host has another one now, or another route, the
// socket has to be connected again: the client's part of connection migration (RFC 9000
// §9.2). There is no clock, socket or lock here.
package reroute

import (
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/arqnet/kcp/internal/neterr"
)

const (
	// patience is the least time without an answer after which a session looks, if its
	// RTO is not longer, and longPatience the most.
	patience     = 300 * time.Millisecond
	longPatience = time.Second
	// every is the time between two looks in the first while of a silence, and
	// everyLater after that.
	every      = 250 * time.Millisecond
	everyLater = 500 * time.Millisecond
	while      = 5 * time.Second
	// listening is how long after its last question a session gets data at least that
	// counts as one that only listens.
	listening = 500 * time.Millisecond
	// idle is the most time between two looks for a route that is to come, while no
	// session waits for it.
	idle = everyLater
	// confirmations is how many looks in a row have to show another address if the
	// sessions do not survive that.
	confirmations = 3
)

// Every is the least time between two looks, except for those that a session asks for.
const Every = every

// Patience returns after which time without an answer a session looks. rto is its
// retransmission time-out.
func Patience(rto time.Duration) time.Duration { return max(patience, min(rto, longPatience)) }

// Next returns when to look in a silence: nothing was heard since quiet, though an answer
// is due. looked is when the last look was.
func Next(quiet, patience, looked time.Duration) time.Duration {
	if looked-quiet < while {
		return max(quiet+patience, looked+every)
	}
	return max(quiet+patience, looked+everyLater)
}

// After returns when to look once, after data that was the last at a time, though nothing
// is to be answered: the session only listens, as data still came some time after it has
// asked for something. Other sessions hear what they have asked for, and then nothing.
// data is 0 if there was none. The result is 0 if nothing has to be looked for.
func After(data, asked, looked time.Duration) time.Duration {
	if at := data + longPatience; data > 0 && data-asked >= listening && looked < at {
		return at
	}
	return 0
}

// Socket is the state of a connected socket.
type Socket struct {
	Connected bool       // it still is
	Source    netip.Addr // that it sends from, or sent from last
	Device    string     // the interface that it is bound to; "": none
}

// Route is the system's answer to which address it would send from now.
type Route struct {
	Source  netip.Addr
	Device  string // the interface that a new socket would be bound to; "": none
	Err     error  // why there is no route; nil: there is one
	Unknown bool   // the system cannot be asked, and the rest has no meaning
}

// Action is what follows from a look.
type Action uint8

const (
	Leave   Action = iota // nothing has changed, or it is not certain yet
	Ask                   // another address may be needed: the peer's silence would confirm that
	Wait                  // there is no usable route: the next look may find one
	Resume                // there is one again, and the socket can use it
	Connect               // the socket has to be connected again
)

// Watch is what is remembered from one look to the next. The zero value is ready.
type Watch struct {
	lost  bool          // the last look has found no usable route
	other int           // looks in a row that have shown another address
	at    time.Duration // when the last one was
	again time.Duration // what Again has returned; 0: it was not called since lost was false
}

// Decide returns what follows from a look at a socket that is, or was, connected to peer.
// moves says that its sessions survive another address. Otherwise the old one may still
// do, and is only given up if several looks say so. The first has the sessions ask the
// peer, as one that only listens does not look again otherwise.
func (w *Watch) Decide(s Socket, r Route, peer netip.Addr, moves bool, now time.Duration) Action {
	if now-w.at > 2*everyLater {
		w.other = 0
	}
	w.at = now
	switch {
	case !r.Unknown && (r.Err != nil || narrower(r.Source, peer) && r.Source != s.Source):
		w.lost = true
		return Wait
	case !s.Connected:
		return Connect
	case r.Unknown, r.Source != s.Source, r.Device != s.Device:
		w.other++
		switch {
		case moves || w.other >= confirmations:
			return Connect
		case w.other == 1:
			return Ask
		}
		return Leave
	}
	w.other = 0
	if w.lost {
		w.lost = false
		return Resume
	}
	return Leave
}

// Again returns after which time to look again after Wait, though nobody asks for it: it
// doubles from one look to the next.
func (w *Watch) Again() time.Duration {
	if !w.lost {
		w.again = 0
		return 0
	}
	w.again = min(max(2*w.again, every), idle)
	return w.again
}

// Connected is called with the outcome of Connect.
func (w *Watch) Connected(ok bool) { w.lost, w.other = !ok, 0 }

// narrower reports whether source is a link-local address and peer none: what the system
// chooses while it has no other address yet, such as during duplicate address detection.
// No answer would arrive there (RFC 6724 §5, rule 2).
func narrower(source, peer netip.Addr) bool {
	return source.Is6() && source.IsLinkLocalUnicast() && !peer.IsLinkLocalUnicast()
}

// indifferent are errors of a socket that say nothing about its own address.
var indifferent = []syscall.Errno{
	syscall.ECONNREFUSED, syscall.EMSGSIZE, syscall.ENOBUFS, syscall.ENOMEM,
	syscall.EPERM, syscall.EACCES, syscall.EAGAIN, syscall.EINTR,
}

// Concerns reports whether an error of a socket may be due to its own address, or to its
// route.
func Concerns(err error) bool {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return false
	}
	return !slices.ContainsFunc(indifferent, func(e syscall.Errno) bool { return neterr.Is(err, e) })
}
