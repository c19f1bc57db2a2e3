package kcp

import (
	"slices"

	"github.com/arqnet/kcp/internal/session"
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
	session.Written
}

// sendBatchSize is from how many packets on a sendBatch is written.
const sendBatchSize = 64

// add takes the packets of c, which are for it. It runs without any lock.
func (b *sendBatch) add(c *Conn) {
	done := false
	defer func() {
		if !done {
			c.endUnsent()
		}
	}()
	w := sessionWrite{conn: c}
	c.mu.Lock()
	c.session.NextWrite(&w.Written, 0)
	c.mu.Unlock()
	if len(b.writes) > 0 && (b.ep != c.ep || b.shard != w.Shard || len(b.batch) >= sendBatchSize) {
		b.send()
	}
	b.ep, b.shard = c.ep, w.Shard
	c.session.Encode(&w.Written)
	b.writes = append(b.writes, w)
	b.batch = append(b.batch, w.Datagrams...)
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
		own := w.Datagrams
		copy(own, rest)
		rest = rest[len(own):]
		w.Refused = slices.ContainsFunc(own, func(d udp.Datagram) bool { return d.TooLarge })
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
		b.ep.Recycle(w.Packets)
		w.conn.endBatch(&w.Written)
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
func (c *Conn) endBatch(w *session.Written) {
	c.mu.Lock()
	defer c.unlock()
	c.session.Wrote(w)
}

// writePackets encodes and writes the collected packets, and then retires a session that
// has ended. The goroutine that has claimed them calls it, without c.mu.
func (c *Conn) writePackets() {
	var w session.Written
	unwound := true
	defer func() {
		if unwound {
			c.endUnsent()
		}
	}()
	var log func()
	for round := 0; ; round++ {
		var more bool
		if more, log = c.nextWrite(&w, round); !more {
			break
		}
		c.session.Encode(&w)
		w.Refused = c.ep.write(w.Shard, w.Datagrams)
		c.ep.Recycle(w.Packets)
	}
	if unwound = false; log != nil {
		log()
	}
}

// nextWrite locks c.mu, records that w was written, and takes what is to be written next.
// It reports false if that is nothing: then a session that has ended was retired. log is
// what tells the Logger so; nil: nothing does.
func (c *Conn) nextWrite(w *session.Written, round int) (more bool, log func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.letGoOn()
	more, over := c.session.NextWrite(w, round)
	if over {
		c.retire()
		log = c.logEnd()
	}
	return more, log
}

// endUnsent locks c.mu, and ends a session while whose packets were to be written code of
// the application's has panicked.
func (c *Conn) endUnsent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.letGoOn()
	c.session.Wrote(nil)
	c.retire()
}
