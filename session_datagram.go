package kcp

import (
	"encoding/binary"
	"fmt"
	"net"

	"github.com/arqnet/kcp/internal/closing"
)

// maxQueuedDatagrams is the most datagrams that wait for ReceiveDatagram. One
// more pushes out the oldest: unreliable data should at least be fresh.
const maxQueuedDatagrams = 256

// datagramEntry is the memory of a waiting datagram beside its payload, in
// bytes.
const datagramEntry = 48

// datagramQueue holds datagrams that have arrived.
type datagramQueue struct {
	waiting [][]byte // oldest first
	bytes   int      // memory of waiting, with datagramEntry for each
	stats   DatagramStats
	moved   uint64 // payload bytes received and sent
	handled bool   // by a handler; else datagrams wait for ReceiveDatagram
}

// add queues a copy of b, and counts it.
func (q *datagramQueue) add(b []byte) {
	q.stats.Received++
	q.moved += uint64(len(b))
	if len(q.waiting) >= maxQueuedDatagrams {
		q.pop()
		q.stats.Dropped++
	}
	b = append(make([]byte, 0, len(b)), b...)
	q.waiting = append(q.waiting, b)
	q.bytes += cap(b) + datagramEntry
}

// pop removes and returns the oldest datagram.
func (q *datagramQueue) pop() []byte {
	b := q.waiting[0]
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	q.bytes -= cap(b) + datagramEntry
	if len(q.waiting) == 0 {
		q.waiting = nil
	}
	return b
}

// takeDatagram leaves b, which lies in the memory of the batch, to the handler if
// there is one: the reader of the batch calls handleDatagram. Otherwise it queues
// a copy of b for ReceiveDatagram. It drops b then, and counts
// that, after Close, under memory pressure, and beyond unvalidatedBytes for a
// peer whose address is not validated.
func (c *session) takeDatagram(b []byte) {
	q := c.datagramQueue()
	if q.handled && c.closing.Caller == closing.Uses {
		c.host.hand(b)
		return
	}
	if c.closing.Caller != closing.Uses || c.memoryPressure() != pressureNone || c.hs.unvalidated.Load() && c.held()+len(b)+datagramEntry > unvalidatedBytes {
		q.stats.Received++
		q.stats.Dropped++
		return
	}
	q.add(b)
}

// datagramQueue returns the queue, which it allocates: most sessions need none.
func (c *session) datagramQueue() *datagramQueue {
	if c.in.datagrams == nil {
		c.in.datagrams = new(datagramQueue)
	}
	return c.in.datagrams
}

func (c *session) maxDatagramSize() int {
	room := &c.shared.overhead
	return c.mtu() - room.cipherHead - room.tail - datagramHeader
}

// queueDatagram is SendDatagram without writing the packet.
func (c *session) queueDatagram(b []byte) error {
	switch {
	case c.closing.Caller != closing.Uses:
		return net.ErrClosed
	case c.closing.err != nil:
		return c.reason(c.closing.err)
	case len(b) > c.maxDatagramSize():
		return &SizeError{len(b), c.maxDatagramSize(), ErrDatagramTooLarge, fmt.Sprintf("what fits into a packet of %d bytes", c.mtu())}
	}
	o := &c.outgoing
	if o.waiting() >= maxOutgoing || c.hs.securing {
		c.datagramQueue().stats.Unsent++
		return nil
	}
	at := c.shared.overhead.cipherHead
	if !c.kcp.validation().Take(at + datagramHeader + len(b) + c.shared.overhead.tail) {
		c.datagramQueue().stats.Unsent++
		return nil
	}
	p := c.shared.packet(at + datagramHeader + len(b) + c.shared.overhead.tail)
	p.datagram = true
	binary.LittleEndian.PutUint32(p.buf[at+datagramHeader-4:], c.entry.Conv)
	copy(p.buf[at+datagramHeader:], b)
	now := c.host.now()
	if s := c.capped; s != nil {
		c.holdDatagram(s, p, now)
	} else {
		c.addDatagram(p)
	}
	c.noteActivity(now)
	c.refreshRTT(now)
	return nil
}

// addDatagram adds a datagram to the packets to be sent, and counts it.
func (c *session) addDatagram(p packet) {
	c.outgoing.add(p)
	q := c.datagramQueue()
	q.stats.Sent++
	q.moved += uint64(len(p.buf) - c.shared.overhead.cipherHead - datagramHeader - c.shared.overhead.tail)
}
