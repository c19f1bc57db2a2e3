package kcp

import (
	"errors"
	"math/rand/v2"
	"time"
)

// How a party writes.

// write is one call that writes.
type write struct {
	b         *bond
	data      []byte
	number    uint32 // of a message, or of a receipt
	begun     int
	whole     bool // all or nothing
	reliable  bool
	options   *MessageOptions // nil: none
	inGroup   bool            // EventWritable is due after ErrWouldBlock
	writables int             // that had come before
}

// prepareLocked returns what to write to b; nil if nothing may be written now, as it
// would not be known in which order. p.mu is held.
func (p *partner) prepareLocked(b *bond, r *rand.Rand) *write {
	if b.pending != nil || b.writing > 0 && (!b.messages || r.IntN(2) == 0) {
		return nil
	}
	b.writing++
	size := r.IntN(3000)
	if r.IntN(8) == 0 {
		size = r.IntN(50000)
	}
	w := &write{b: b, reliable: !b.partial, whole: b.messages}
	w.number, w.begun = b.out.begin()
	if !b.messages {
		b.out.mu.Lock()
		at := b.out.wrote
		b.out.mu.Unlock()
		w.data = b.out.bytesAt(at, 1+size)
		if w.whole = b.s != nil && r.IntN(4) == 0; w.whole {
			w.options = &MessageOptions{Done: b.out.receipt(w.number)}
		}
		return w
	}
	if r.IntN(20) == 0 {
		size = 0
	}
	w.data = b.out.message(w.number, size)
	if r.IntN(2) == 0 {
		w.options = &MessageOptions{Done: b.out.receipt(w.number)}
		if r.IntN(4) == 0 {
			w.options.Lifetime = time.Duration(1+r.IntN(500)) * time.Millisecond
		}
		if r.IntN(4) == 0 {
			w.options.MaxRetransmits = r.IntN(5) - 1
		}
		w.reliable = w.reliable && w.options.Lifetime == 0 && w.options.MaxRetransmits == 0
	}
	return w
}

// prepare is prepareLocked without the lock.
func (p *partner) prepare(b *bond, r *rand.Rand) *write {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.prepareLocked(b, r)
}

// write writes to b and waits, on a goroutine of its own. Of two such calls one would
// wait for a sync.Mutex, which keeps the time of the bubble from passing.
func (p *partner) write(b *bond, r *rand.Rand) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b.waits {
		return
	}
	w := p.prepareLocked(b, r)
	if w == nil {
		return
	}
	b.waits = true
	p.calls.Go(func() {
		n, err := w.block(p.conn)
		p.wrote(w, n, err)
		p.mu.Lock()
		defer p.mu.Unlock()
		b.waits = false
		b.writing--
	})
}

// block is a call that waits.
func (w *write) block(c *Conn) (n int, err error) {
	switch s := w.b.s; {
	case s == nil && w.whole:
		err = c.SendMessage(w.data, w.options)
	case s == nil:
		return c.Write(w.data)
	case w.whole:
		err = s.SendMessage(w.data, w.options)
	default:
		return s.Write(w.data)
	}
	return w.all(err), err
}

// try is a call that does not wait.
func (w *write) try(c *Conn) (n int, err error) {
	switch s := w.b.s; {
	case s == nil && w.whole:
		err = c.TrySendMessage(w.data, w.options)
	case s == nil:
		return c.TryWrite(w.data)
	case w.whole:
		err = s.TrySendMessage(w.data, w.options)
	default:
		return s.TryWrite(w.data)
	}
	return w.all(err), err
}

// all returns how many bytes were written of what is written as a whole.
func (w *write) all(err error) int {
	if err != nil {
		return 0
	}
	return len(w.data)
}

// wrote notes what was written, which is not written again.
func (p *partner) wrote(w *write, n int, err error) {
	expectError(p.life.t, errorUnless(err, ErrWouldBlock))
	out := w.b.out
	if w.b.messages || w.options != nil {
		if err != nil {
			return
		}
		m := sentMessage{size: len(w.data), begun: w.begun, reliable: w.reliable, hasReceipt: w.options != nil}
		if !w.b.messages {
			m.upTo = out.wroteBytes(n)
		}
		out.taken(w.number, m)
		return
	}
	out.wroteBytes(n)
	w.data = w.data[n:]
}

// errorUnless returns err, or nil if it is other.
func errorUnless(err, other error) error {
	if err == other {
		return nil
	}
	return err
}

// tryOne writes to b without waiting.
func (p *partner) tryOne(b *bond, r *rand.Rand) {
	if w := p.prepare(b, r); w != nil {
		p.try(b, w)
	}
}

// flood fills the write buffers of the session and its streams.
func (p *partner) flood(r *rand.Rand) {
	p.eachBond(func(b *bond) {
		for range 20 {
			p.tryOne(b, r)
		}
	})
}

// try writes w without waiting. What finds no room waits for EventWritable.
func (p *partner) try(b *bond, w *write) {
	for again := true; again; {
		p.expect(w)
		n, err := w.try(p.conn)
		p.wrote(w, n, err)
		again = p.tried(b, w, err)
	}
}

// expect takes note of what there is before a call that does not wait.
func (p *partner) expect(w *write) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.inGroup, w.writables = p.group != nil && p.removed.IsZero(), w.b.writables
}

// tried takes the result of a call that did not wait, and reports whether to repeat it.
func (p *partner) tried(b *bond, w *write, err error) (again bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !errors.Is(err, ErrWouldBlock) || !w.inGroup || p.group == nil || !p.removed.IsZero() || !b.closedAt.IsZero() || p.closed || b.pending != nil {
		b.writing--
		return false
	}
	if b.writables != w.writables {
		return true // the event may have come after the call, or before
	}
	b.blocked, b.pending = true, w
	return false
}

// sendBatch writes to many streams and sessions of this end by Group.Send, some of them
// several times.
func (p *partner) sendBatch(r *rand.Rand) {
	var batch []Outgoing
	var writes []*write
	var of []*partner
	for range 1 + r.IntN(12) {
		q := p.life.anyPartner(p.key.side, r)
		b := q.anyBond(r)
		w := q.prepare(b, r)
		if w == nil {
			continue
		}
		if w.options != nil && !b.messages {
			w.whole = false
		}
		o := Outgoing{Stream: b.s, Data: w.data}
		if w.options != nil && b.messages {
			o.Lifetime = w.options.Lifetime
			w.reliable = !b.partial && o.Lifetime == 0
		}
		w.options = nil
		if b.s == nil || r.IntN(2) == 0 {
			o.Conn = q.conn
		}
		q.expect(w)
		batch, writes, of = append(batch, o), append(writes, w), append(of, q)
	}
	g := NewGroup()
	if len(p.groups) > 0 {
		g = p.groups[r.IntN(len(p.groups))].Group
	}
	g.Send(batch)
	for i, o := range batch {
		w, q := writes[i], of[i]
		if w.whole && o.N != 0 && o.N != len(o.Data) {
			p.life.t.Errorf("%s: Send has queued %d of %d bytes of a message", w.b.out.name, o.N, len(o.Data))
		}
		q.wrote(w, o.N, o.Err)
		if q.tried(w.b, w, o.Err) {
			q.try(w.b, w)
		}
	}
}

// anyPartner returns one of a side; nil if there is none.
func (l *groupLife) anyPartner(side string, r *rand.Rand) *partner {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []*partner
	for _, p := range l.list {
		if p.key.side == side {
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[r.IntN(len(all))]
}

// sendDatagrams sends some.
func (p *partner) sendDatagrams() {
	log := p.life.datagrams(p.key)
	for range p.random.IntN(20) {
		size := p.random.IntN(max(p.conn.MaxDatagramSize(), messageHeader+1))
		if size < messageHeader {
			size = 0
		}
		number, _ := log.begin()
		data := log.message(number, size)
		if p.random.IntN(2) == 0 {
			NewGroup().Send([]Outgoing{{Conn: p.conn, Data: data, Datagram: true}})
		} else {
			expectError(p.life.t, p.conn.SendDatagram(data))
		}
	}
}
