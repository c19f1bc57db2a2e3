package kcp

import (
	"context"
	"encoding/binary"
	"net"
	"os"
)

// maxQueuedDatagrams bounds what waits for ReceiveDatagram. The oldest goes
// when there is one more: what is unreliable should at least be fresh.
const maxQueuedDatagrams = 256

// datagramEntry is what a waiting datagram takes beside its bytes.
const datagramEntry = 48

// datagramQueue holds datagrams that have arrived. It belongs to Conn.mu.
type datagramQueue struct {
	waiting [][]byte
	bytes   int // of memory
	stats   DatagramStats
	moved   uint64 // bytes received and sent
}

// add queues a copy of b.
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

// pop takes the oldest out.
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

// takeDatagram queues a copy of b, if there is memory for it and somebody to
// receive it. For a peer whose
// address is not validated there is little.
func (c *Conn) takeDatagram(b []byte) {
	q := c.datagramQueue()
	if c.closing.closed || c.memoryPressure() != pressureNone || c.hs.unvalidated.Load() && c.held()+len(b)+datagramEntry > unvalidatedBytes {
		q.stats.Received++
		q.stats.Dropped++
		return
	}
	q.add(b)
}

// datagramQueue returns the queue, which most sessions do without.
func (c *Conn) datagramQueue() *datagramQueue {
	if c.in.datagrams == nil {
		c.in.datagrams = new(datagramQueue)
	}
	return c.in.datagrams
}

func (c *Conn) datagramStats() (s DatagramStats) {
	if c.in.datagrams != nil {
		s = c.in.datagrams.stats
	}
	return s
}

// MaxDatagramSize returns the most bytes that SendDatagram takes. It follows the
// MTU that the path turns out to have, so it may become more and, where the path
// swallows larger packets, less: down to what fits into 1200 bytes, or into
// Config.MTU where that is smaller.
func (c *Conn) MaxDatagramSize() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.maxDatagramSize()
}

func (c *Conn) maxDatagramSize() int {
	room := &c.outgoing.sender.overhead
	return c.mtu() - room.cipherHead - room.tail - datagramHeader
}

// SendDatagram sends b as one packet past the byte stream: unreliable,
// unordered, not repeated, not protected by FEC, and not limited by the
// windows. It does not wait; if too much waits for the socket, or the peer has
// not yet shown that it gets what is sent to its address, b may be dropped, and
// is counted. The peer gets it from ReceiveDatagram, or in kcp-go, which calls
// it an OOB packet and needs FEC to be on for it, from the handler. The errors
// are ErrDatagramTooLarge, net.ErrClosed, and why the session has ended.
func (c *Conn) SendDatagram(b []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closing.closed:
		return c.opError("write", net.ErrClosed)
	case c.closing.err != nil:
		return c.opError("write", c.closing.err)
	case len(b) > c.maxDatagramSize():
		return c.opError("write", ErrDatagramTooLarge)
	}
	o := &c.outgoing
	if o.waiting() >= maxOutgoing {
		c.datagramQueue().stats.Unsent++
		return nil
	}
	at := o.sender.overhead.cipherHead
	if !c.kcp.spendCredit(at + datagramHeader + len(b) + o.sender.overhead.tail) {
		c.datagramQueue().stats.Unsent++
		return nil
	}
	p := c.ep.packet(at + datagramHeader + len(b) + o.sender.overhead.tail)
	p.datagram = true
	binary.LittleEndian.PutUint32(p.buf[at+datagramHeader-4:], c.path.key.conv)
	copy(p.buf[at+datagramHeader:], b)
	o.add(p)
	c.datagramQueue().stats.Sent++
	c.datagramQueue().moved += uint64(len(b))
	c.noteActivity(c.ep.now())
	c.writePackets()
	return nil
}

// ReceiveDatagram waits for the next datagram of the peer and returns it. At
// most 256 are kept waiting; then the oldest are dropped, and counted. It fails
// when ctx is done, with its error; when the read deadline has passed, with
// os.ErrDeadlineExceeded; and as Read does when the session is at its end.
func (c *Conn) ReceiveDatagram(ctx context.Context) ([]byte, error) {
	stop := context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.io.canRead.Broadcast()
	})
	defer stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.datagramQueue()
	for {
		switch {
		case c.closing.closed:
			return nil, c.opError("read", net.ErrClosed)
		case ctx.Err() != nil:
			return nil, c.opError("read", ctx.Err())
		case c.io.readDeadline.expired:
			return nil, c.opError("read", os.ErrDeadlineExceeded)
		case len(q.waiting) > 0:
			b := q.pop()
			c.account()
			return b, nil
		case c.closing.err != nil:
			return nil, c.opError("read", c.closing.err)
		}
		c.io.canRead.Wait()
	}
}
