package kcp

import (
	"net"
	"time"

	"github.com/arqnet/kcp/internal/lingering"
	"github.com/arqnet/kcp/internal/neterr"
	"github.com/arqnet/kcp/internal/udp"
)

// Sockets that outlive their sessions, to answer the peers. They are given up when
// descriptors are short: some are always left to the application.

// lingerers are the endpoints of the process whose sockets are open for that only.
var lingerers lingering.Set[*Endpoint]

// linger counts the endpoint's socket as one that is open for peers of ended sessions
// only. The one that has been so for longest is given up if there are too many.
func (e *Endpoint) linger() {
	if _, ok := e.socket.shards[0].conn().(*net.UDPConn); !ok {
		return // a simulated socket has no descriptor
	}
	if oldest, ok := lingerers.Add(e, lingering.Limit(udp.Descriptors())); ok {
		time.AfterFunc(0, oldest.giveUp) // locks of e are held
	}
}

// giveUp closes the socket if it is open for peers of ended sessions only. Endpoint.mu
// and Conn.mu are not held.
func (e *Endpoint) giveUp() {
	e.mu.RLock()
	conns := e.table.Sessions()
	e.mu.RUnlock()
	for _, c := range conns {
		c.endDraining()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.socket.holdUntil = 0
	e.shutIfUnusedLocked()
}

// withDescriptors calls open, which opens a socket. If the process or the system has no
// descriptor for it, lingering sockets are given up, one after the other.
func withDescriptors[T any](open func() (T, error)) (T, error) {
	for {
		x, err := open()
		if err == nil || !neterr.OutOfDescriptors(err) {
			return x, err
		}
		oldest, ok := lingerers.Take()
		if !ok {
			return x, err
		}
		oldest.giveUp()
	}
}
