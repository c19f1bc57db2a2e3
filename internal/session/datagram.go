package session

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
// that, after Close, under memory pressure, and beyond UnvalidatedBytes for a
// peer whose address is not validated.
func (c *Session) takeDatagram(b []byte) {
	q := c.datagramQueue()
	if q.Handled && c.closing.Caller == closing.Uses {
		c.host.Hand(int(c.path.shard), b)
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

// Handed counts a datagram that was handed over. It reports false if it is
// dropped, as has is false: nobody takes it, or the session is closed.
func (c *Session) Handed(size int, has bool) bool {
	q := c.datagramQueue()
	q.Arrived(size)
	c.traceDatagram(trace.DatagramReceived, size)
	c.noteActivity(c.host.Now())
	if has && c.closing.Caller == closing.Uses {
		return true
	}
	q.Stats.Dropped++
	c.traceDatagram(trace.DatagramDropped, size)
	return false
}

// ReceiveDatagram returns the oldest datagram that waits, if there is one.
func (c *Session) ReceiveDatagram() (b []byte, ok bool) {
	q := c.datagramQueue()
	if q.Len() == 0 {
		return nil, false
	}
	b = q.Pop()
	c.accountRead(len(b))
	return b, true
}

// DatagramSize is MaxDatagramSize.
func (c *Session) DatagramSize() int {
	if c.closing.Phase < closing.Ended {
		c.wantMTU(0)
	}
	size, _ := c.maxDatagramSize()
	return size
}

// datagramQueue returns the queue, which it allocates: most sessions need none.
func (c *Session) datagramQueue() *streams.Datagrams {
	if c.in.datagrams == nil {
		c.in.datagrams = new(streams.Datagrams)
	}
	return c.in.datagrams
}

// maxDatagramSize returns the largest datagram that is promised to arrive, and that is
// taken, in bytes.
func (c *Session) maxDatagramSize() (promised, taken int) {
	room := c.shared.Overhead.CipherHead + c.shared.Overhead.Tail + DatagramHeader
	promised, taken = c.datagramMTU()
	return max(promised-room, 0), max(taken-room, 0)
}

// SendDatagram is Conn.SendDatagram without writing the packet.
func (c *Session) SendDatagram(b []byte) error {
	switch _, most := c.maxDatagramSize(); {
	case c.closing.Caller != closing.Uses:
		return net.ErrClosed
	case c.closing.err != nil:
		return c.reason(c.closing.err)
	case len(b) > most:
		_, size := c.datagramMTU()
		return c.host.PublicError(&SizeError{len(b), most, ErrDatagramTooLarge, fmt.Sprintf("what fits into a packet of %d bytes", size)})
	}
	o := &c.outgoing
	at := c.shared.Overhead.CipherHead
	if o.waiting() >= maxOutgoing || c.hs.securing || !c.kcp.Validation().Take(at+DatagramHeader+len(b)+c.shared.Overhead.Tail) {
		c.unsent(len(b))
		return nil
	}
	p := c.shared.Packet(at + DatagramHeader + len(b) + c.shared.Overhead.Tail)
	p.datagram = true
	binary.LittleEndian.PutUint32(p.Buf[at+DatagramHeader-4:], c.entry.Conv)
	copy(p.Buf[at+DatagramHeader:], b)
	c.wantMTU(len(p.Buf))
	now := c.host.Now()
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
func (c *Session) unsent(payload int) {
	c.datagramQueue().Stats.Unsent++
	c.traceDatagram(trace.DatagramUnsent, payload)
}

// addDatagram adds a datagram to the packets to be sent, and counts it.
func (c *Session) addDatagram(p Packet) {
	c.outgoing.add(p)
	c.datagramQueue().Sent(c.payloadOf(p))
	c.traceDatagram(trace.DatagramSent, c.payloadOf(p))
}

// payloadOf returns how many bytes of payload the packet of a datagram has.
func (c *Session) payloadOf(p Packet) int {
	return len(p.Buf) - c.shared.Overhead.CipherHead - DatagramHeader - c.shared.Overhead.Tail
}
