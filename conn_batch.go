package kcp

import (
	"slices"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/udp"
)

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
	w := sessionWrite{c, c.session.beginWrite()}
	c.mu.Unlock()
	if len(b.writes) > 0 && (b.ep != c.ep || b.shard != w.shard || len(b.batch) >= sendBatchSize) {
		b.send()
	}
	b.ep, b.shard = c.ep, w.shard
	w.packets, w.err = c.session.encode(w.packets, w.to, w.by)
	b.writes = append(b.writes, w)
	b.batch = append(b.batch, c.session.outgoing.batch...)
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

// noteRefused tells each session whether the system has refused packets as too large.
func (b *sendBatch) noteRefused() {
	rest := b.batch
	for i := range b.writes {
		w := &b.writes[i]
		own := w.conn.session.outgoing.batch // which nobody else uses while it is in a sendBatch
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
	failed := c.session.endWrite(w)
	c.session.outgoing.sending, c.session.outgoing.batched = false, false
	if failed != nil {
		c.session.end(failed)
	}
}

// sendRound is what writePackets writes with one call of the system.
type sendRound struct {
	written
	probe *sentProbe // in place of packets; nil: none
	log   func()     // after the last, what tells the Logger that the session has ended; nil: nothing
	done  bool       // there is nothing more
}

// writePackets encodes and writes the collected packets, and then retires a session that
// has ended. The goroutine that has set outgoing.sending calls it, without c.mu.
func (c *Conn) writePackets() {
	var r sendRound
	defer func() {
		if !r.done {
			c.endUnsent()
		}
	}()
	for round := 0; c.nextRound(&r, round); round++ {
		if r.probe != nil {
			r.probe.write(c, &r.written)
			continue
		}
		r.packets, r.err = c.session.encode(r.packets, r.to, r.by)
		r.refused = c.ep.write(r.shard, c.session.outgoing.batch)
		c.ep.recycle(r.packets)
	}
	if r.log != nil {
		r.log()
	}
}

// nextRound locks c.mu, records what was written, and takes what is to be written next.
// It reports false if that is nothing: then other goroutines may write, and a session
// that has ended was retired.
func (c *Conn) nextRound(r *sendRound, round int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.letGoOn()
	o := &c.session.outgoing
	failed := r.err
	if r.probe != nil {
		c.session.endProbe(r.probe, &r.written)
		r.probe = nil
	} else if round > 0 {
		failed = c.session.endWrite(&r.written)
	}
	switch {
	case failed != nil, o.waiting() == 0:
	case round >= sendRounds && c.session.closing.Phase < closing.Ended:
		c.session.wake(c.ep.now())
	case o.probe != nil:
		r.probe, r.written = c.session.beginProbe()
		return true
	default:
		r.written = c.session.beginWrite()
		return true
	}
	o.sending, r.done = false, true
	if failed != nil {
		c.session.end(failed)
	}
	if c.session.closing.Phase >= closing.Ended && c.session.closing.Phase != closing.Retired {
		c.retire()
		r.log = c.logEnd()
	}
	return false
}

// endUnsent locks c.mu, and is endIfUnwound for who has set outgoing.sending.
func (c *Conn) endUnsent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.letGoOn()
	c.session.outgoing.sending, c.session.outgoing.batched = false, false
	done := false
	c.session.endIfUnwound(&done)
	c.retire() // if it had ended before
}

// write writes the probe to the socket, without c.mu.
func (p *sentProbe) write(c *Conn, w *written) {
	if w.err = w.by.Seal(p.buf, nil); w.err == nil {
		w.refused = c.ep.write(w.shard, []udp.Datagram{w.to.datagram(p.buf)})
		c.ep.recycle([]packet{{buf: p.buf}})
	}
}
