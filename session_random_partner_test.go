package kcp

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// partner is the application at one end of a session of a groupLife.
type partner struct {
	life    *groupLife
	key     partnerKey
	conn    *Conn
	groups  []*served  // that it may join; immutable once live runs
	own     *bond      // of the session itself; immutable
	random  *rand.Rand // of the goroutine of live
	reading sync.WaitGroup
	calls   sync.WaitGroup // that write

	mu      sync.Mutex // nothing that waits is called with it
	bonds   map[uint32]*bond
	all     []*bond
	chance  *rand.Rand // of those that handle events
	group   *served    // nil: plain calls read
	removed time.Time  // when it was taken out of a group; zero: it was not
	reads   int        // plain calls in progress
	unread  bool       // plain calls make a pause
	ended   bool       // EventEnded has come
	closed  bool       // Close or Abort was called
	early   bool       // so, before all was read
}

// bond is what a party has of a stream, or of the session itself.
type bond struct {
	s        *Stream // nil: the session itself
	out, in  *streamLog
	messages bool
	partial  bool // messages may be given up

	// partner.mu guards the fields below.
	writing    int    // calls that write, and what waits for EventWritable
	waits      bool   // one of them waits
	pending    *write // waits for EventWritable
	blocked    bool   // EventWritable is due
	writables  int    // that have come
	atOnce     int    // of them, those at writableAt
	writableAt time.Time
	eof        bool      // EventEOF has come
	closedAt   time.Time // by Close or Reset
	stopped    bool      // this end reads no more
	broken     bool      // this end has dropped what it had written
	finished   bool      // CloseWrite has returned nil
	codes      map[uint64]bool
}

// closeCode and closeText are the reason of all parties that give one.
const (
	closeCode = 77
	closeText = "enough"
)

// bondLocked returns what p has of s, which is new; nil: of the session itself. Either
// p.mu is held, or p is being made.
func (p *partner) bondLocked(s *Stream) *bond {
	b := &bond{s: s, messages: p.conn.ep.config.MessageMode, codes: make(map[uint64]bool)}
	id, ordered := uint32(0), true
	if s != nil {
		o := s.Options()
		id, ordered = s.ID(), !o.Unordered
		b.partial = o.MaxLifetime > 0 || o.MaxRetransmits != 0
		b.messages = b.messages || b.partial || o.Unordered
	}
	if p.bonds[id] != nil {
		p.life.t.Errorf("%v: stream %d was opened twice", p.key, id)
	}
	p.bonds[id] = b
	p.all = append(p.all, b)
	b.out = p.life.log(p.key, id, ordered)
	b.in = p.life.log(p.key.peer(), id, ordered)
	return b
}

// peer returns the key of the other end.
func (k partnerKey) peer() partnerKey {
	if k.side == "a" {
		return partnerKey{k.conv, "b"}
	}
	return partnerKey{k.conv, "a"}
}

// bondOf returns what p has of s.
func (p *partner) bondOf(s *Stream) *bond {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bonds[s.ID()]
}

// opened takes a stream, whoever has opened it. Its reader reads it whenever the session
// is in no group.
func (p *partner) opened(s *Stream) *bond {
	p.mu.Lock()
	b := p.bondLocked(s)
	p.mu.Unlock()
	p.reading.Go(func() { p.read(b) })
	return b
}

// anyBond returns a random one.
func (p *partner) anyBond(random *rand.Rand) *bond {
	p.mu.Lock()
	defer p.mu.Unlock()
	if random.IntN(4) == 0 {
		return p.own
	}
	return p.all[random.IntN(len(p.all))]
}

// live uses the session until its end.
func (p *partner) live() {
	p.reading.Go(func() { p.read(p.own) })
	p.reading.Go(p.acceptStreams)
	p.reading.Go(p.receiveDatagrams)
	for end := time.Now().Add(time.Duration(300+p.random.IntN(6000)) * time.Millisecond); time.Now().Before(end); {
		p.act()
		if p.life.pause(time.Duration(p.random.IntN(80)) * time.Millisecond) {
			break
		}
	}
	if p.random.IntN(3) > 0 {
		<-p.life.calm
		p.settle()
	}
	p.finish()
	p.reading.Wait()
	p.calls.Wait()
}

// over reports whether the session has ended.
func (p *partner) over() bool { return p.conn.Err() != nil }

// act does one thing of many.
func (p *partner) act() {
	r := p.random
	b := p.anyBond(r)
	switch n := r.IntN(100); {
	case n < 12:
		p.open()
	case n < 40:
		p.write(b, r)
	case n < 60:
		for range 1 + r.IntN(8) {
			p.tryOne(b, r)
		}
	case n < 69:
		p.sendBatch(r)
	case n < 71:
		p.flood(r)
	case n < 74:
		p.sendDatagrams()
	case n < 82:
		p.endSome(b, r.IntN(5))
	case n < 88:
		p.move()
	case n < 91:
		p.rest()
	case n < 94:
		p.look(b)
	case n < 96:
		p.hurry(b)
	case n < 97 && r.IntN(4) == 0:
		p.closeWrite(p.own)
	case n < 97:
		_ = p.conn.SetMaxRate([]int{0, 20000 + r.IntN(1<<18)}[r.IntN(2)])
	case n < 98:
		_ = p.conn.SetWriteBuffer(4096 + r.IntN(1<<17))
	}
}

// open opens a stream.
func (p *partner) open() {
	r := p.random
	o := &StreamOptions{Unordered: r.IntN(3) == 0, Priority: r.IntN(16) - 8}
	if r.IntN(5) == 0 {
		o.MaxLifetime = time.Duration(1+r.IntN(1000)) * time.Millisecond
	}
	if r.IntN(5) == 0 {
		o.MaxRetransmits = r.IntN(5) - 1
	}
	var s *Stream
	var err error
	if r.IntN(2) == 0 {
		s, err = p.conn.TryOpenStream(o)
	} else {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		s, err = p.conn.OpenStream(ctx, o)
		cancel()
	}
	if err == nil {
		p.opened(s)
	}
}

// endSome ends a stream, or one of its directions.
func (p *partner) endSome(b *bond, how int) {
	if b.s == nil {
		return
	}
	p.mu.Lock()
	code := 1 + p.chance.Uint64()%maxStreamCode
	if how < 3 {
		b.codes[code] = true
	}
	b.stopped = b.stopped || how == 0 || how == 2 || how == 4
	b.broken = b.broken || how == 1 || how == 2
	p.mu.Unlock()
	switch how {
	case 0:
		_ = b.s.CancelRead(code)
	case 1:
		_ = b.s.CancelWrite(code)
	case 2:
		_ = b.s.Reset(code)
	case 3:
		p.closeWrite(b)
	case 4:
		_ = b.s.Close()
	}
	if how == 2 || how == 4 {
		p.closedStream(b)
	}
}

// closedStream takes note that the stream is closed here: it has no events any more.
func (p *partner) closedStream(b *bond) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b.closedAt, b.blocked = time.Now(), false
	b.dropPendingLocked()
}

// dropPendingLocked gives up what waits for EventWritable.
func (b *bond) dropPendingLocked() {
	if b.pending != nil {
		b.pending = nil
		b.writing--
	}
}

func (p *partner) closeWrite(b *bond) {
	end := p.conn.CloseWrite
	if b.s != nil {
		end = b.s.CloseWrite
	}
	if err := end(); err == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		b.finished = true
	}
}

// move takes the session out of its group, or puts it into one.
func (p *partner) move() {
	p.mu.Lock()
	g := p.group
	p.mu.Unlock()
	if g == nil && len(p.groups) > 0 {
		p.join(p.groups[p.random.IntN(len(p.groups))])
	} else if g != nil && p.random.IntN(2) == 0 {
		p.change(g)
	} else if g != nil && p.remove(g) {
		g.quiet()
		p.leftGroup(g)
	}
}

// change takes the session from g to another group, or back. Nothing reads it meanwhile.
func (p *partner) change(g *served) {
	if !p.remove(g) {
		return
	}
	g.quiet()
	p.mu.Lock()
	p.unread = true
	p.mu.Unlock()
	p.leftGroup(g)
	p.sleep(time.Duration(p.random.IntN(600)) * time.Millisecond)
	p.join(p.groups[p.random.IntN(len(p.groups))])
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unread = false
}

// remove takes the session out of its group. It reports false if it is not in that any
// more.
func (p *partner) remove(g *served) bool {
	if err := g.Remove(p.conn); err != nil {
		assert.ErrorIs(p.life.t, err, ErrNotGrouped) // closed, or the session has ended
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.removed = time.Now()
	return true
}

// closes takes note that the session is closed here; early says that this may be before
// all was read.
func (p *partner) closes(early bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.closed, p.early = true, early
	}
}

// join puts the session into a group.
func (p *partner) join(g *served) {
	p.mu.Lock()
	if p.ended || p.closed {
		p.mu.Unlock()
		return
	}
	p.group, p.removed = g, time.Time{}
	p.own.eof = false // it comes again, as Read returns it again
	p.mu.Unlock()
	if err := g.Add(p.conn); err != nil {
		assert.ErrorIs(p.life.t, err, net.ErrClosed)
		p.leftGroup(g)
	}
}

// leftGroup takes note that the session is not in g any more, if it was.
func (p *partner) leftGroup(g *served) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.group != g {
		return
	}
	p.group = nil
	for _, b := range p.bonds {
		b.blocked = false
		b.dropPendingLocked()
	}
}

// rest lets plain calls not read for some time.
func (p *partner) rest() {
	p.mu.Lock()
	p.unread = true
	p.mu.Unlock()
	d := time.Duration(p.random.IntN(2000)) * time.Millisecond
	p.reading.Go(func() {
		p.life.pause(d)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.unread = false
	})
}

// look calls what changes nothing.
func (p *partner) look(b *bond) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(p.random.IntN(500))*time.Millisecond)
	_ = p.conn.Flush(ctx)
	cancel()
	p.conn.Stats()
	p.conn.WriteAvailable()
	p.conn.NextMessageSize()
	p.conn.WriteReady()
	if b.s != nil {
		b.s.Stats()
		b.s.NextMessageSize()
		_ = b.s.Err()
	}
}

// hurry sets deadlines that calls soon miss, or takes them back.
func (p *partner) hurry(b *bond) {
	at := time.Time{}
	if p.random.IntN(2) == 0 {
		at = time.Now().Add(time.Duration(p.random.IntN(500)) * time.Millisecond)
	}
	if b.s == nil {
		_ = p.conn.SetDeadline(at)
	} else {
		_ = b.s.SetDeadline(at)
	}
}

// settle checks, once the network is good and all that arrives is read, that all of
// what was written has left, and that ends arrive.
func (p *partner) settle() {
	_ = p.conn.SetDeadline(time.Time{})
	_ = p.conn.SetMaxRate(0)
	p.eachBond(func(b *bond) {
		if b.s != nil {
			_ = b.s.SetDeadline(time.Time{})
		}
	})
	p.sleep(settled)
	if p.over() {
		return
	}
	p.eachBond(p.checkRoom)
	p.eachBond(p.closeWrite)
	if p.random.IntN(3) == 0 {
		p.move() // while the ends are on their way
	}
	p.sleep(settled)
	if peer := p.life.partnerOf(p.key.peer()); peer != nil && !p.over() {
		p.eachBond(func(b *bond) { p.checkEnd(b, peer) })
	}
}

// settled is how long a party waits until all is at rest.
const settled = 3 * time.Minute

// sleep sleeps, but not beyond the end of the session.
func (p *partner) sleep(d time.Duration) {
	select {
	case <-p.conn.Done():
	case <-time.After(d):
	}
}

// eachBond calls f for all bonds, without a lock.
func (p *partner) eachBond(f func(b *bond)) {
	p.mu.Lock()
	all := slices.Clone(p.all)
	p.mu.Unlock()
	for _, b := range all {
		f(b)
	}
}

// finish ends the session in some way, or leaves that to the server's end.
func (p *partner) finish() {
	how, early := p.random.IntN(6), true
	if p.key.side == "b" && p.random.IntN(2) == 0 {
		p.sleep(2 * settled) // it has no end by itself once both ends have called CloseWrite
		if p.over() && p.random.IntN(4) > 0 {
			p.reading.Wait() // what has arrived can be read
			early = false
		}
		how = 0
	}
	p.closes(early)
	switch how {
	default:
		_ = p.conn.Close()
	case 1:
		_ = p.conn.CloseWithError(closeCode, closeText)
	case 2:
		_ = p.conn.Abort()
	case 3:
		_ = p.conn.AbortWithError(closeCode, closeText)
	}
	<-p.conn.Done()
	// Both have to be closed, but the session has ended.
	_ = p.conn.Close()
}

// expectError reports whether err is one that a call may return.
func expectError(t *testing.T, err error) bool {
	var lost *PeerLostError
	var stream *StreamError
	var size *SizeError
	var socket *SocketError
	switch {
	case err == nil, errors.As(err, &lost), errors.As(err, &size), errors.As(err, &socket):
		return true
	case errors.As(err, &stream):
		if stream.Code == StreamViolation {
			t.Errorf("a violation: %v", err)
		}
		return true
	}
	for _, other := range []error{
		io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, ErrReset, ErrPeerClosed, ErrNotDelivered, ErrGrouped,
		ErrMemoryPressure, os.ErrDeadlineExceeded, context.DeadlineExceeded,
	} {
		if errors.Is(err, other) {
			return true
		}
	}
	t.Errorf("an error that no call returns: %v", err)
	return false
}
