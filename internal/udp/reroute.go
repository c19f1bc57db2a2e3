package udp

import (
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/arqnet/kcp/internal/neterr"
)

// What follows from the system's answer to which route a connected socket has to its peer.
// To connect a socket fixes the address that it sends from. If the host has another one
// now, or another route, the socket has to be connected again: the client's part of
// connection migration (RFC 9000 §9.2). There is no clock, socket or lock here.

const (
	// RouteEvery is the least time between two looks because of errors, and before the
	// second look for a route that is to come, while no session waits for it. Later ones
	// are routeIdle apart.
	RouteEvery = 250 * time.Millisecond
	routeIdle  = 500 * time.Millisecond
	// confirmations is how many looks in a row have to show another address if the
	// sessions do not survive that: less than inARow apart.
	confirmations = 3
	inARow        = time.Second
)

// SocketState is the state of a connected socket.
type SocketState struct {
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

// RouteOutcome is what follows from a look.
type RouteOutcome uint8

const (
	RouteKept    RouteOutcome = iota // nothing has changed, or it is not certain yet
	RouteDoubted                     // another address may be needed: the peer's silence would confirm that
	RouteMissing                     // there is no usable route: the next look may find one
	RouteBack                        // there is one again, and the socket can use it
	RouteChanged                     // the socket has to be connected again
)

// RouteWatch is what is remembered from one look to the next. The zero value is ready.
type RouteWatch struct {
	lost  bool          // the last look has found no usable route
	other int           // looks in a row that have shown another address
	at    time.Duration // when the last one was
	again time.Duration // what Again has returned; 0: it was not called since lost was false
}

// Decide returns what follows from a look at a socket that is, or was, connected to peer.
// moves says that its sessions survive another address. Otherwise the old one may still
// do, and is only given up if several looks say so. The first has the sessions ask the
// peer, as one that only listens does not look again otherwise.
func (w *RouteWatch) Decide(s SocketState, r Route, peer netip.Addr, moves bool, now time.Duration) RouteOutcome {
	if now-w.at > inARow {
		w.other = 0
	}
	w.at = now
	switch {
	case !r.Unknown && (r.Err != nil || narrower(r.Source, peer) && r.Source != s.Source):
		w.lost = true
		return RouteMissing
	case !s.Connected:
		return RouteChanged
	case r.Unknown, r.Source != s.Source, r.Device != s.Device:
		w.other++
		switch {
		case moves || w.other >= confirmations:
			return RouteChanged
		case w.other == 1:
			return RouteDoubted
		}
		return RouteKept
	}
	w.other = 0
	if w.lost {
		w.lost = false
		return RouteBack
	}
	return RouteKept
}

// Again returns after which time to look again after RouteMissing, though nobody asks for
// it: it doubles from one look to the next.
func (w *RouteWatch) Again() time.Duration {
	if !w.lost {
		w.again = 0
		return 0
	}
	w.again = min(max(2*w.again, RouteEvery), routeIdle)
	return w.again
}

// Connected is called after RouteChanged: ok says that the socket was connected again.
func (w *RouteWatch) Connected(ok bool) { w.lost, w.other = !ok, 0 }

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

// ConcernsRoute reports whether an error of a socket may be due to its own address, or to
// its route.
func ConcernsRoute(err error) bool {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return false
	}
	return !slices.ContainsFunc(indifferent, func(e syscall.Errno) bool { return neterr.Is(err, e) })
}
