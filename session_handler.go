package kcp

import (
	"sync"

	"github.com/arqnet/kcp/internal/closing"
)

// datagramHandler is a handler of datagrams. running is held while handle runs.
// It is locked before Conn.mu, and while no other lock is held. So calls do not
// overlap, although two sockets may receive the session's packets.
type datagramHandler struct {
	running sync.Mutex
	handle  func(b []byte)
}

// HandleDatagrams makes f take the datagrams that arrive from now on, in place of
// ReceiveDatagram and before EventDatagram; nil ends that. Those that had arrived before
// stay for ReceiveDatagram. Those that arrive after Close are dropped.
//
// Calls of f do not overlap. They are made on the goroutine that reads the socket, which
// may be that of a blocked Read or Write; nothing else is received meanwhile. So f must
// not block, and must not call what may: Read, Write, Close of a session that lingers,
// Endpoint.Close. It may call SendDatagram and HandleDatagrams. b is valid during the
// call only; f may change it. When HandleDatagrams returns, the old handler may still be
// running.
func (c *Conn) HandleDatagrams(f func(b []byte)) {
	c.mu.Lock()
	defer c.unlock()
	if f != nil || c.in.datagrams != nil {
		c.datagramQueue().handled = f != nil
	}
	if f != nil {
		c.state().handler = &datagramHandler{handle: f}
	} else if c.calls != nil {
		c.calls.handler = nil
	}
}

// handleDatagram locks c.mu to find the handler and count the datagram, and
// passes b to it without a lock of the session. If the handler was removed, or
// the session closed, within the batch, it drops b.
func (c *Conn) handleDatagram(b []byte) {
	c.mu.Lock()
	q := c.datagramQueue()
	h := c.state().handler
	q.stats.Received++
	q.moved += uint64(len(b))
	c.noteActivity(c.ep.now())
	if h == nil || c.closing.Caller != closing.Uses {
		q.stats.Dropped++
		h = nil
	}
	c.unlock()
	if h == nil {
		return
	}
	h.running.Lock()
	defer h.running.Unlock()
	h.handle(b)
}
