package kcp

import (
	"context"
	"errors"
	"io"
	"os"
	"time"
)

// How a party reads: it takes events while the session is in a group, and else calls
// what reads.

// accepted takes EventAccepted.
func (p *partner) accepted(g *served) {
	p.mu.Lock()
	p.group = g
	p.mu.Unlock()
	p.life.servers.Go(p.live)
}

// event takes an event of a group, which was taken at the given time.
func (p *partner) event(e Event, g *served, taken time.Time) {
	p.awaitReads()
	retry := p.note(e, g, taken)
	b := p.own
	if e.Stream != nil {
		b = p.bondOf(e.Stream)
	}
	switch {
	case e.Kind == EventStream:
		p.opened(e.Stream)
	case b == nil:
		return
	case retry != nil:
		p.try(b, retry)
	case e.Kind == EventEOF && e.Stream != nil:
		if p.draw(2) == 0 {
			p.stopHere(b)
			_ = e.Stream.Close()
			p.closedStream(b)
		}
	case !p.life.isCalm():
		p.respond(b, g)
	}
}

// respond does something, or not, when an event was handled. It does not wait.
func (p *partner) respond(b *bond, g *served) {
	switch n := p.draw(400); {
	case n < 40:
		p.mu.Lock()
		w := p.prepareLocked(b, p.chance)
		p.mu.Unlock()
		if w != nil {
			p.try(b, w)
		}
	case n < 44:
		if s, err := p.conn.TryOpenStream(nil); err == nil {
			p.opened(s)
		}
	case n < 48:
		p.endSome(b, n-44)
	case n == 50:
		if p.remove(g) {
			p.life.events.Go(func() {
				g.quiet()
				p.leftGroup(g)
			})
		}
	case n == 51:
		p.closes(true)
		_ = p.conn.Close() // it may be closed
	case n == 52:
		p.closes(true)
		_ = p.conn.Abort()
	}
}

// draw returns a number below n.
func (p *partner) draw(n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.chance.IntN(n)
}

// stopHere takes note that this end reads no more of b.
func (p *partner) stopHere(b *bond) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b.stopped = true
}

// awaitReads waits for plain calls that were blocked when the session joined its group:
// they return at once, but may have received something.
func (p *partner) awaitReads() {
	for {
		p.mu.Lock()
		n := p.reads
		if p.group == nil {
			n = 0 // which is wrong, and reported
		}
		p.mu.Unlock()
		if n == 0 {
			return
		}
		time.Sleep(time.Nanosecond)
	}
}

// note checks that e may be the next event, and takes what it brings. It returns what
// is to be written now.
func (p *partner) note(e Event, g *served, taken time.Time) (retry *write) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t, b := p.life.t, p.own
	wrong := func(what string) {
		id := uint32(0)
		if e.Stream != nil {
			id = e.Stream.ID()
		}
		t.Errorf("%v: %v of stream %d %s (%v)", p.key, e.Kind, id, what, e.Err)
	}
	if e.Stream != nil {
		b = p.bonds[e.Stream.ID()]
	}
	theirs := e.Stream != nil && e.Stream.ID()&1 == 1 == (p.key.side == "b")
	switch {
	case p.ended:
		wrong("after EventEnded")
	case p.group != g:
		wrong("of another group")
	case !p.removed.IsZero() && taken.After(p.removed):
		wrong("after Remove")
	case e.Kind == EventStream && (b != nil || !theirs):
		wrong("for a known stream")
	case e.Kind == EventStream:
		return nil
	case b == nil:
		wrong("before EventStream")
		return nil
	case !b.closedAt.IsZero() && taken.After(b.closedAt):
		wrong("after its Close")
	case b.eof && (e.Kind == EventData || e.Kind == EventMessage || e.Kind == EventEOF):
		wrong("after EventEOF")
	}
	switch e.Kind {
	case EventData, EventMessage:
		if b.messages != (e.Kind == EventMessage) {
			wrong("in a wrong mode")
		}
		p.arrived(b, e.Data)
	case EventDatagram:
		p.datagram(e.Data)
	case EventEOF:
		expectError(t, e.Err)
		b.eof = true
		b.in.end(e.Err)
	case EventWritable:
		p.countWritable(b, taken)
		b.blocked = false
		retry, b.pending = b.pending, nil
	case EventEnded:
		p.endLocked(e.Err)
	default:
		wrong("is unexpected")
	}
	return retry
}

// countWritable counts EventWritable. If it comes again and again at one instant, that
// has no end.
func (p *partner) countWritable(b *bond, taken time.Time) {
	if b.writables++; !taken.Equal(b.writableAt) {
		b.writableAt, b.atOnce = taken, 0
	}
	if b.atOnce++; b.atOnce > 1000 {
		panic(b.out.name + ": EventWritable again and again")
	}
}

// endLocked takes EventEnded. p.mu is held.
func (p *partner) endLocked(err error) {
	expectError(p.life.t, err)
	p.ended, p.group = true, nil
	for _, b := range p.bonds {
		b.blocked = false
		b.dropPendingLocked()
		if b.s == nil {
			b.in.end(err)
		}
	}
}

// arrived takes data of a message, or of bytes.
func (p *partner) arrived(b *bond, data []byte) {
	if b.messages {
		b.in.takeMessage(data)
	} else {
		b.in.takeBytes(data)
	}
}

// datagram checks a datagram.
func (p *partner) datagram(data []byte) {
	if len(data) > 0 && !p.life.datagrams(p.key.peer()).isMessage(data) {
		p.life.t.Errorf("%v: a datagram of %d bytes that was not sent: %x", p.key, len(data), data[:min(len(data), 16)])
	}
}

// mayRead reports whether plain calls may read; doneReading must follow then. Otherwise
// it has waited.
func (p *partner) mayRead() bool {
	p.mu.Lock()
	may := p.group == nil && !p.unread
	if may {
		p.reads++
	}
	p.mu.Unlock()
	if !may {
		time.Sleep(20 * time.Millisecond)
	}
	return may
}

func (p *partner) doneReading() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reads--
}

// goesOn reports whether a plain call that has returned err is to be repeated.
func (p *partner) goesOn(err error) bool {
	return err == nil || errors.Is(err, ErrGrouped) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}

// read reads b by plain calls, whenever the session is in no group.
func (p *partner) read(b *bond) {
	buf := make([]byte, 1<<18)
	for err := error(nil); p.goesOn(err); {
		if !p.mayRead() {
			continue
		}
		var n int
		n, err = p.readOnce(b, buf)
		p.mu.Lock()
		after := p.ended && (n > 0 || err == nil)
		p.mu.Unlock()
		if after {
			p.life.t.Errorf("%v: a read of %d bytes after EventEnded", p.key, n)
		}
		if err == nil {
			p.arrived(b, buf[:n])
		} else {
			expectError(p.life.t, err)
		}
		if !p.goesOn(err) {
			b.in.end(err)
		}
		p.doneReading()
		p.extend(b, err)
	}
}

// extend removes the deadline of b that has made a call that reads return err.
func (p *partner) extend(b *bond, err error) {
	switch {
	case !errors.Is(err, os.ErrDeadlineExceeded):
	case b.s == nil:
		_ = p.conn.SetReadDeadline(time.Time{}) // the session may have ended
	default:
		_ = b.s.SetReadDeadline(time.Time{})
	}
}

// readOnce is one call that reads.
func (p *partner) readOnce(b *bond, buf []byte) (n int, err error) {
	switch {
	case b.s == nil && b.messages:
		return p.conn.ReadMessage(buf)
	case b.s == nil:
		return p.conn.Read(buf[:1+p.draw(len(buf))])
	case b.messages:
		return b.s.ReadMessage(buf)
	}
	return b.s.Read(buf[:1+p.draw(len(buf))])
}

// acceptStreams accepts streams by plain calls.
func (p *partner) acceptStreams() {
	for err := error(nil); p.goesOn(err); {
		if !p.mayRead() {
			continue
		}
		var s *Stream
		if s, err = p.conn.AcceptStream(context.Background()); err == nil {
			p.opened(s)
		} else {
			expectError(p.life.t, err)
		}
		p.doneReading()
	}
}

// receiveDatagrams receives datagrams by plain calls.
func (p *partner) receiveDatagrams() {
	for err := error(nil); p.goesOn(err); {
		if !p.mayRead() {
			continue
		}
		var b []byte
		if b, err = p.conn.ReceiveDatagram(context.Background()); err == nil {
			p.datagram(b)
		} else {
			expectError(p.life.t, err)
		}
		p.doneReading()
		p.extend(p.own, err)
	}
}

// check judges what the party has seen, and what its peer has of it.
func (p *partner) check() {
	t := p.life.t
	if p.group != nil && !p.group.closed.Load() && !p.ended {
		t.Errorf("%v: no EventEnded", p.key)
	}
	peer := p.life.parties[p.key.peer()]
	for id, b := range p.bonds {
		if b.s != nil && b.s.Err() == nil {
			t.Errorf("%s: Err is nil", b.out.name)
		}
		whole := false
		if peer != nil {
			if there := peer.bonds[id]; there != nil {
				whole = !peer.early && peer.conn.ep != p.life.shut && !there.stopped && !b.broken && errors.Is(peer.conn.Err(), ErrPeerClosed) && !there.in.tooLarge()
				p.checkCodes(b, there)
			}
		}
		b.out.check(whole)
	}
}

// checkCodes checks how the peer's reader has ended.
func (p *partner) checkCodes(b, there *bond) {
	err := there.in.ended
	var reset *StreamError
	if !errors.As(err, &reset) || b.s == nil {
		return
	}
	switch {
	case !reset.Remote && reset.Code == StreamTooLarge:
	case !reset.Remote:
		p.life.t.Errorf("%s: the reader has ended with %v", b.out.name, err)
	case !b.codes[reset.Code] && reset.Code != StreamTooLarge && reset.Code != StreamRefused:
		p.life.t.Errorf("%s: the reader has ended with %v, and this end has the codes %v", b.out.name, err, b.codes)
	}
}

// checkRoom checks that EventWritable has followed if there is room, and that what has
// waited for it was written.
func (p *partner) checkRoom(b *bond) {
	p.mu.Lock()
	blocked, pending := b.blocked, b.pending != nil
	p.mu.Unlock()
	c := p.conn
	c.mu.Lock()
	room, end := c.room(), c.cannotWrite(nil)
	if b.s != nil {
		room, _ = c.streamRoom(&b.s.state, 1)
		end = c.cannotWrite(b.s)
	}
	c.mu.Unlock()
	if blocked && (room > 0 || b.s != nil && end != nil) {
		p.life.t.Errorf("%s: no EventWritable, though there is room for %d bytes (%v)", b.out.name, room, end)
	} else if pending && !p.over() {
		p.life.t.Errorf("%s: the peer reads, and there is no room", b.out.name)
	}
}

// checkEnd checks that the end of the peer's writing has arrived.
func (p *partner) checkEnd(b *bond, peer *partner) {
	there := peer.own
	if b.s != nil {
		there = peer.bondOf(b.s)
	}
	if there == nil {
		return
	}
	peer.mu.Lock()
	due := there.finished && !there.broken
	peer.mu.Unlock()
	p.mu.Lock()
	due = due && !b.stopped
	p.mu.Unlock()
	if err := b.in.readEnd(); due && !b.in.tooLarge() && !errors.Is(err, io.EOF) {
		p.life.t.Errorf("%s: the end has not arrived: %v", b.in.name, err)
	}
}
