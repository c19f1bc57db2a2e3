package kcp

import (
	"net"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/udp"
)

// The address of the socket of a Dial. That socket is connected, which fixes the address
// that it sends from. When the host has another one, or another route to the peer, the
// socket is connected again, and the sessions that can migrate do (RFC 9000 §9.2).

// ownAddress is the socket of a Dial, and what is known of its route. It needs no lock.
type ownAddress struct {
	socket  *udp.Connected
	looked  atomic.Int64   // when the last look was, in ns since the epoch
	looking atomic.Bool    // a look is under way or about to be; who has set it uses watch
	watch   udp.RouteWatch // used by the present look
}

// keepConnected has the socket of a Dial, which was opened from local, connected again
// when that is necessary.
func (e *Endpoint) keepConnected(socket *net.UDPConn, local net.Addr) {
	if k := udp.NewConnected(socket, local, e.config.Control); k != nil {
		e.socket.own.Store(&ownAddress{socket: k})
		e.Looks = true
	}
}

// looked returns when the route was looked at last, if looks is set.
func (e *Endpoint) looked() time.Duration { return time.Duration(e.socket.own.Load().looked.Load()) }

// look has the route looked at, on a goroutine that ends with that, unless this is about
// to happen.
func (e *Endpoint) look(after time.Duration) {
	own := e.socket.own.Load()
	if own == nil {
		return
	}
	begins := own.looking.CompareAndSwap(false, true)
	if begins || after <= 0 { // else Config.Control holds a look up, and many come here
		own.looked.Store(int64(e.now() + max(after, 0)))
	}
	if begins {
		time.AfterFunc(after, func() { e.lookNow(own) })
	}
}

// troubled has the route looked at if an error of the socket may be due to it, and if no
// look was just before.
func (e *Endpoint) troubled(err error) {
	if own := e.socket.own.Load(); own != nil && udp.ConcernsRoute(err) {
		e.look(time.Duration(own.looked.Load()) + udp.RouteEvery - e.now())
	}
}

// lookNow looks at the route, and does what follows. While there is none it looks again,
// less often, unless sessions that wait for answers want that sooner.
func (e *Endpoint) lookNow(own *ownAddress) {
	e.mu.Lock()
	over := e.closed || e.socket.shards[0].link.Load().Inbox != nil // after a handover the socket is another process's
	if !over {
		e.socket.readers.Add(1) // Close waits for what Config.Control does
		defer e.socket.readers.Done()
	}
	e.mu.Unlock()
	if over {
		own.looked.Store(never / 2)
		return
	}
	action, moved := e.follow(own)
	again := own.watch.Again()
	own.looking.Store(false)
	switch action {
	case udp.RouteMissing:
		e.look(again)
	case udp.RouteDoubted, udp.RouteChanged, udp.RouteBack:
		e.mu.RLock()
		conns := e.table.Sessions()
		e.mu.RUnlock()
		for _, c := range conns {
			c.do(func(s *session.Session) { s.Rerouted(moved) })
		}
	}
}

// follow looks at the socket and the route, and connects the socket again if that is to
// be done. moved reports whether the socket has another address now.
func (e *Endpoint) follow(own *ownAddress) (action udp.RouteOutcome, moved bool) {
	socket, route, err := own.socket.Look()
	if err != nil {
		return udp.RouteKept, false // it is closed
	}
	action = own.watch.Decide(socket, route, own.socket.Peer(), e.Migrates && e.Protection.Authentic, e.now())
	if action == udp.RouteMissing && route.Err != nil {
		e.noteSocketError(route.Err)
	}
	if action != udp.RouteChanged {
		return action, false
	}
	device := route.Device
	if route.Unknown {
		device = socket.Device
	}
	before := own.socket.LocalAddr()
	moved, err = own.socket.Reconnect(device)
	own.watch.Connected(err == nil)
	if err != nil {
		e.noteSocketError(err)
		e.warn("socket cannot be connected again", err)
		return udp.RouteMissing, false
	}
	if log := e.config.Logger; log != nil && moved {
		log.Info("kcp: local address changed", "from", before.String(), "local", e.LocalAddr().String())
	}
	return action, moved
}
