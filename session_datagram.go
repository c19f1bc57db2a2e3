package kcp

import (
	"encoding/binary"
	"fmt"
	"net"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/trace"
)

// takeDatagram leaves b, which lies in the memory of the batch, to the handler if
// there is one: the reader of the batch calls handleDatagram. Otherwise it queues
// a copy of b for ReceiveDatagram. It drops b then, and counts
// that, after Close, under memory pressure, and beyond unvalidatedBytes for a
// peer whose address is not validated.
func (c *session) takeDatagram(b []byte) {
	q := c.datagramQueue()
	if q.Handled && c.closing.Caller == closing.Uses {
		c.host.hand(int(c.path.shard), b)
		return
	}
	c.traceDatagram(trace.DatagramReceived, len(b))
	if c.closing.Caller != closing.Uses || c.memoryPressure() != machine.PressureNone || c.hs.unvalidated.Load() && c.held()+len(b)+streams.DatagramEntryBytes > machine.UnvalidatedBytes {
		q.Refuse()
		c.traceDatagram(trace.DatagramDropped, len(b))
		return
	}
	if oldest := q.Add(b); oldest != nil {
		c.traceDatagram(trace.DatagramDropped, len(oldest))
	}
}

// handed counts a datagram that was handed over. It reports false if it is
// dropped, as has is false: nobody takes it, or the session is closed.
func (c *session) handed(size int, has bool) bool {
	q := c.datagramQueue()
	q.Arrived(size)
	c.traceDatagram(trace.DatagramReceived, size)
	c.noteActivity(c.host.now())
	if has && c.closing.Caller == closing.Uses {
		return true
	}
	q.Stats.Dropped++
	c.traceDatagram(trace.DatagramDropped, size)
	return false
}

// receiveDatagram returns the oldest datagram that waits, if there is one.
func (c *session) receiveDatagram() (b []byte, ok bool) {
	q := c.datagramQueue()
	if q.Len() == 0 {
		return nil, false
	}
	b = q.Pop()
	c.accountRead(len(b))
	return b, true
}

// datagramSize is MaxDatagramSize.
func (c *session) datagramSize() int {
	if c.closing.Phase < closing.Ended {
		c.wantMTU(0)
	}
	size, _ := c.maxDatagramSize()
	return size
}

// datagramQueue returns the queue, which it allocates: most sessions need none.
func (c *session) datagramQueue() *streams.Datagrams {
	if c.in.datagrams == nil {
		c.in.datagrams = new(streams.Datagrams)
	}
	return c.in.datagrams
}

// maxDatagramSize returns the largest datagram that is promised to arrive, and that is
// taken, in bytes.
func (c *session) maxDatagramSize() (promised, taken int) {
	room := c.shared.overhead.cipherHead + c.shared.overhead.tail + datagramHeader
	promised, taken = c.datagramMTU()
	return max(promised-room, 0), max(taken-room, 0)
}

// sendDatagram is SendDatagram without writing the packet.
func (c *session) sendDatagram(b []byte) error {
	switch _, most := c.maxDatagramSize(); {
	case c.closing.Caller != closing.Uses:
		return net.ErrClosed
	case c.closing.err != nil:
		return c.reason(c.closing.err)
	case len(b) > most:
		_, size := c.datagramMTU()
		return c.host.publicError(&tooLargeError{len(b), most, ErrDatagramTooLarge, fmt.Sprintf("what fits into a packet of %d bytes", size)})
	}
	o := &c.outgoing
	at := c.shared.overhead.cipherHead
	if o.waiting() >= maxOutgoing || c.hs.securing || !c.kcp.Validation().Take(at+datagramHeader+len(b)+c.shared.overhead.tail) {
		c.unsent(len(b))
		return nil
	}
	p := c.shared.packet(at + datagramHeader + len(b) + c.shared.overhead.tail)
	p.datagram = true
	binary.LittleEndian.PutUint32(p.buf[at+datagramHeader-4:], c.entry.Conv)
	copy(p.buf[at+datagramHeader:], b)
	c.wantMTU(len(p.buf))
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

// unsent counts a datagram that is not sent, with so many bytes of payload.
func (c *session) unsent(payload int) {
	c.datagramQueue().Stats.Unsent++
	c.traceDatagram(trace.DatagramUnsent, payload)
}

// addDatagram adds a datagram to the packets to be sent, and counts it.
func (c *session) addDatagram(p packet) {
	c.outgoing.add(p)
	c.datagramQueue().Sent(c.payloadOf(p))
	c.traceDatagram(trace.DatagramSent, c.payloadOf(p))
}

// payloadOf returns how many bytes of payload the packet of a datagram has.
func (c *session) payloadOf(p packet) int {
	return len(p.buf) - c.shared.overhead.cipherHead - datagramHeader - c.shared.overhead.tail
}
