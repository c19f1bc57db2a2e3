package kcp

import "sync"

// datagramHandler is a handler of datagrams. running is held while handle runs.
// It is locked before Conn.mu, and while no other lock is held. So calls do not
// overlap, although two sockets may receive the session's packets.
type datagramHandler struct {
	running sync.Mutex
	handle  func(b []byte)
}

// HandleDatagrams makes f take the datagrams that arrive from now on, in place of
// ReceiveDatagram; nil ends that. Datagrams that had arrived before stay for
// ReceiveDatagram. A datagram that arrives after Close is dropped. In a Group, a
// handler comes before EventDatagram.
//
// f is called on the goroutine that reads the socket, which may be that of a
// blocked Read or Write. Nothing else is received meanwhile. So f must not block,
// and must not call a method of the Conn or its endpoint that may: Read, Write,
// Close of a session that lingers, Endpoint.Close. It may call SendDatagram and
// HandleDatagrams, as no lock is held that they need. Calls of f do not overlap.
//
// b belongs to the package, and is valid during the call only; f may change it.
// When HandleDatagrams returns, the old handler may still be running.
func (c *Conn) HandleDatagrams(f func(b []byte)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case f != nil:
		c.datagramQueue().handler = &datagramHandler{handle: f}
	case c.in.datagrams != nil:
		c.in.datagrams.handler = nil
	}
}

// handleDatagram locks c.mu to find the handler and count the datagram, and
// passes b to it without a lock of the session. If the handler was removed, or
// the session closed, within the batch, it drops b.
func (c *Conn) handleDatagram(b []byte) {
	c.mu.Lock()
	q := c.datagramQueue()
	h := q.handler
	q.stats.Received++
	q.moved += uint64(len(b))
	c.noteActivity(c.ep.now())
	if h == nil || c.closing.closed {
		q.stats.Dropped++
		h = nil
	}
	c.mu.Unlock()
	if h == nil {
		return
	}
	h.running.Lock()
	defer h.running.Unlock()
	h.handle(b)
}
