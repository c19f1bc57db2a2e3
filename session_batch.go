package kcp

import (
	"slices"

	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/udp"
)

// written is packets of a session on their way to the socket. The goroutine that has
// set outgoing.sending has it.
type written struct {
	packets []packet
	data    int // of packets, those that are not parity
	shard   int
	to      source
	by      protect.Protection
	err     error // of encode
	refused bool  // the system has refused some as too large
}

// beginWrite takes the collected packets to be encoded and written. endWrite must
// follow.
func (c *session) beginWrite() written {
	o := &c.outgoing
	w := written{packets: o.packets, data: len(o.packets), shard: int(c.path.shard), to: c.origin(), by: c.in.protection.Sender()}
	o.packets = o.spare[:0]
	o.spare = nil
	// A peer whose address is not validated gets the packet format that it
	// uses, and no parity.
	o.noParity = o.encoder == nil || c.hs.unvalidated.Load()
	o.noFECHeader = o.noParity && (o.encoder == nil || !c.hs.openedFEC)
	o.hold = c.cappedOutput() != nil
	if o.whole = maxUDPPayload; c.plpmtu != nil {
		o.whole = c.plpmtu.Whole(maxUDPPayload)
	}
	if o.encoder != nil {
		w.data -= countParity(w.packets)
	}
	return w
}

// endWrite records that packets were written, and returns why not.
func (c *session) endWrite(w *written) error {
	o := &c.outgoing
	if !o.noFECHeader {
		o.fecData += uint64(w.data)
		o.fecParity += uint64(len(w.packets) - w.data)
	}
	if w.refused {
		c.sizeRefused(smallestRefused(o.batch))
	}
	clear(o.batch)
	for i := range w.packets {
		if s := w.packets[i].segment; s != nil {
			c.kcp.releaseSegment(s)
		}
	}
	clear(w.packets)
	o.spare = w.packets[:0]
	if o.hold {
		c.holdParity()
	}
	return w.err
}

// smallestRefused returns the size of the smallest datagram that the system has
// refused as too large, in bytes.
func smallestRefused(batch []udp.Datagram) int {
	least := maxUDPPayload
	for i := range batch {
		if batch[i].TooLarge {
			least = min(least, len(batch[i].Buf))
		}
	}
	return least
}

// sendBatch is packets of several sessions that one call of the system writes to a
// socket, which halves what a small packet costs. Each session has set
// outgoing.sending until send has written its packets. One goroutine uses it.
type sendBatch struct {
	ep     *Endpoint
	shard  int
	writes []sessionWrite
	batch  []udp.Datagram
	ended  int // of writes, those whose sessions go on
}

// sessionWrite is what a session has in a sendBatch.
type sessionWrite struct {
	conn *Conn
	written
}

// sendBatchSize is from how many packets on a sendBatch is written.
const sendBatchSize = 64

// add takes the packets of c, which has set outgoing.sending. It runs without any lock.
func (b *sendBatch) add(c *Conn) {
	done := false
	defer func() {
		if !done {
			c.endUnsent()
		}
	}()
	c.mu.Lock()
	w := sessionWrite{c, c.beginWrite()}
	c.mu.Unlock()
	if len(b.writes) > 0 && (b.ep != c.ep || b.shard != w.shard || len(b.batch) >= sendBatchSize) {
		b.send()
	}
	b.ep, b.shard = c.ep, w.shard
	w.packets, w.err = c.encode(w.packets, w.to, w.by)
	b.writes = append(b.writes, w)
	b.batch = append(b.batch, c.outgoing.batch...)
	done = true
}

// send writes the packets, without any lock, and lets the sessions go on, even if code
// of the application's panics.
func (b *sendBatch) send() {
	if len(b.writes) == 0 {
		return
	}
	defer b.reset()
	defer b.endBatches()
	if b.ep.write(b.shard, b.batch) {
		b.noteRefused()
	}
}

// noteRefused tells each session whether the system has refused some of its packets as
// too large.
func (b *sendBatch) noteRefused() {
	rest := b.batch
	for i := range b.writes {
		w := &b.writes[i]
		own := w.conn.outgoing.batch // which nobody else uses while it is in a sendBatch
		copy(own, rest)
		rest = rest[len(own):]
		w.refused = slices.ContainsFunc(own, func(d udp.Datagram) bool { return d.TooLarge })
	}
}

// endBatches lets the sessions go on that do not yet.
func (b *sendBatch) endBatches() {
	if b.ended == len(b.writes) {
		return
	}
	defer b.endBatches() // of those behind one whose code panics
	for b.ended < len(b.writes) {
		w := &b.writes[b.ended]
		b.ended++
		b.ep.recycle(w.packets)
		w.conn.endBatch(&w.written)
	}
}

// reset empties b.
func (b *sendBatch) reset() {
	clear(b.batch)
	clear(b.writes)
	b.ep, b.batch, b.writes, b.ended = nil, b.batch[:0], b.writes[:0], 0
}

// endBatch locks c.mu, records that packets were written, and writes those that
// were collected meanwhile. Then a session that has ended is retired.
func (c *Conn) endBatch(w *written) {
	c.mu.Lock()
	defer c.unlock()
	failed := c.endWrite(w)
	c.outgoing.sending, c.outgoing.batched = false, false
	if failed != nil {
		c.end(failed)
	}
}
