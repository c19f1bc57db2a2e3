package kcp

import (
	"context"
	"io"
	"net"
	"os"
	"slices"
	"sync"

	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/udp"
)

// Read reads up to len(b) bytes, and waits until there are some. The rest of a message
// that does not fit into b is for the next Read. After all that has arrived it returns
// io.EOF if the peer has closed the session, or its side of it, and io.ErrUnexpectedEOF
// if it has done so within a message. Other errors are os.ErrDeadlineExceeded, also if
// data is there, and ErrInUse in a Group.
func (c *Conn) Read(b []byte) (n int, err error) {
	lent := false // the state machine copies what arrives straight into b
	takeBack := func() int {
		lent, c.io.filling = false, false
		return len(b) - c.session.TakeBack()
	}
	err = c.await(blocking{op: "read"}, func() (pause, error) {
		if lent {
			n = takeBack()
		}
		if n == 0 {
			if err := c.cannotRead(); err != nil || len(b) == 0 {
				return pause{}, err
			}
		}
		if n = c.session.Read(b, n); n > 0 {
			return pause{}, nil
		} else if err := c.session.ReadEnd(false); err != nil {
			return pause{}, err
		}
		if !c.io.filling { // else another Read has lent its buffer, and comes first
			lent, c.io.filling = true, true
			c.session.Lend(b)
		}
		return pause{on: &c.io.canRead}, nil
	}, func() {
		if lent && takeBack() > 0 {
			c.session.Unwind() // what is in b is lost
		}
	})
	return n, err
}

// ReadMessage reads the next message into b and returns its size in bytes, which may be
// 0. Of a message that Read has begun it returns the rest. The peer's mode decides what a
// message is: if it sends a byte stream, one segment, as it has cut it. The errors are
// Read's, and io.ErrShortBuffer if b is too small; then the message stays queued.
func (c *Conn) ReadMessage(b []byte) (n int, err error) {
	err = c.await(blocking{op: "read"}, func() (pause, error) {
		if err := c.cannotRead(); err != nil {
			return pause{}, err
		}
		size, err := c.session.ReadMessage(b)
		switch err {
		case nil:
			n = size
			return pause{}, nil
		case io.ErrShortBuffer:
			return pause{}, err
		}
		return pause{on: &c.io.canRead}, c.session.ReadEnd(false)
	}, nil)
	return n, err
}

// cannotRead returns why a Read fails even if data has arrived; nil if it does not.
func (c *Conn) cannotRead() error {
	s := c.session.State()
	switch {
	case s.Left:
		return net.ErrClosed
	case c.io.member != nil:
		return errGrouped
	case c.io.readDeadline.expired():
		if w := c.session.Waiting(); !c.ep.shared.Compat.DataBeforeDeadline || !w.Data && !w.All && s.Err == nil {
			return os.ErrDeadlineExceeded
		}
	}
	return nil
}

// Write queues b, and sends at once as much as the windows allow. It blocks while
// Config.WriteBuffer is full, and returns when all of b is queued; if it fails, n bytes
// were. In message mode each segment of b is a message; see WriteMessage. Concurrent
// calls do not interleave. Errors are os.ErrDeadlineExceeded, ErrPeerClosed when the peer
// has closed the session, and net.ErrClosed after CloseWrite, too.
func (c *Conn) Write(b []byte) (n int, err error) {
	return c.write(nil, session.WriteCall{B: b, Waits: true})
}

// write is all calls that write to s, or if that is nil to the session. It takes the
// lock of those, writing, and c.mu.
func (c *Conn) write(s *Stream, w session.WriteCall) (int, error) {
	if w.Options != nil {
		if err := (*MessageOptions)(w.Options).check(); err != nil {
			return 0, c.opError("write", err)
		}
	}
	writing := &c.writing
	if s != nil {
		writing = &s.writing
	}
	if w.Waits {
		writing.Lock()
	}
	begun := false
	err := c.await(blocking{op: "write", stream: s}, func() (p pause, err error) {
		if !begun {
			begun = true
			w.Free = w.Waits || writing.TryLock() // after c.mu: the one that holds it sees a refusal
			w.Message = w.Message || s == nil && !w.Waits && c.session.State().Message
			if w.Message {
				w.Begun = c.ep.now()
			}
		}
		if w.Line != nil {
			w.Line.Done()
			w.Line = nil
		}
		before := w.N
		err, p.on = c.tryWrite(s, &w), &c.io.canWrite
		if s != nil {
			p.on = &s.canWrite
		}
		if w.N > before || w.Message && err == nil {
			c.session.Push()
		}
		switch {
		case err == nil && w.N < len(w.B):
			return pause{again: true}, nil // these segments are on their way before the next
		case err != ErrWouldBlock || !w.Waits:
			return pause{}, err
		case s != nil:
			w.Line = s.state.Wait(w.Half, false)
		}
		return p, nil
	}, func() {
		if w.Line != nil {
			w.Line.Done()
		}
		if !w.Free {
			return
		}
		writing.Unlock()
		// A write that did not wait for this one may have room, or has to wait for some.
		if m := c.io.member; s != nil && s.refused {
			s.refused = false
			s.noteEventLocked()
		} else if s == nil && m != nil && m.refused {
			m.refused = false
			m.wake()
		}
	})
	return w.N, err
}

// tryWrite is session.Session.Write to s, or if that is nil to the session. What has to
// follow is noted: EventWritable of a group.
func (c *Conn) tryWrite(s *Stream, w *session.WriteCall) error {
	if w.Late = c.io.writeDeadline.err(); s != nil {
		w.Late, w.Stream, w.Closed = s.writeDeadline.err(), &s.state, s.closed
	}
	err := c.session.Write(w)
	if err == ErrWouldBlock && !w.Waits {
		if m := c.io.member; s != nil {
			s.refused = s.refused || !w.Free
			s.awaitRoomLocked(w.Half)
		} else if m != nil {
			m.wantsRoom, m.refused = true, m.refused || !w.Free
		}
	}
	return err
}

// MaxMessageSize returns the largest message that WriteMessage takes, in bytes: 127
// segments, or as many as the largest receive window that the peer has shown. It grows
// with the path MTU, and never shrinks. It is 0 without message mode.
func (c *Conn) MaxMessageSize() int {
	c.mu.Lock()
	defer c.unlock()
	return c.session.MaxMessage()
}

// WriteMessage queues b as one message, which may be empty, of up to MaxMessageSize
// bytes. options nil means none. What follows a message that is given up does not wait
// for it. A peer that takes no streams cannot be told so of one that was partly sent:
// docs/calls.md.
//
// It blocks as Write does, which counts towards Lifetime. If it fails, nothing was
// queued. Errors are Write's, a *SizeError, an *OptionError, errors.ErrUnsupported
// without message mode, and ErrWouldBlock itself with MessageOptions.NoWait.
func (c *Conn) WriteMessage(b []byte, options *MessageOptions) error {
	_, err := c.write(nil, options.call(b))
	return err
}

// NextMessageSize returns the size in bytes of the message that ReadMessage would return
// now, such as after io.ErrShortBuffer. ok is false if ReadMessage would wait or fail.
func (c *Conn) NextMessageSize() (size int, ok bool) {
	c.mu.Lock()
	defer c.unlock()
	if size = c.session.NextMessage(); size < 0 || c.cannotRead() != nil {
		return 0, false
	}
	return size, true
}

// TryWrite is Write without waiting: it queues as much of b as the write buffer has room
// for, and returns the number of bytes. In message mode b is one message, which is queued
// whole or not at all. If not all of b is queued, the error is ErrWouldBlock itself:
// there is no more room, or another goroutine is in a call that writes. WriteReady waits
// for room; in a Group EventWritable follows.
func (c *Conn) TryWrite(b []byte) (n int, err error) {
	return c.write(nil, session.WriteCall{B: b})
}

// WriteReady returns a channel that is closed as soon as TryWrite would not return
// ErrWouldBlock, or if nothing can be written any more. A call may return a new one.
func (c *Conn) WriteReady() <-chan struct{} {
	c.mu.Lock()
	defer c.unlock()
	w := c.state()
	if w.room == nil {
		w.room = make(chan struct{})
	}
	room := w.room
	c.announceRoom(w)
	return room
}

// announceRoom closes the channel of WriteReady if a write would not wait.
func (c *Conn) announceRoom(w *callState) {
	if c.session.Writable(&session.WriteCall{Late: c.io.writeDeadline.err()}) {
		close(w.room)
		w.room = nil
	}
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
		b.ep.shared.Recycle(w.Packets)
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
		c.ep.shared.Recycle(w.Packets)
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

// datagramHandler is a handler of datagrams. running is held while handle runs.
// It is locked before Conn.mu, and while no other lock is held. So calls do not
// overlap, although two sockets may receive the session's packets.
type datagramHandler struct {
	running sync.Mutex
	handle  func(b []byte)
}

// handleDatagrams makes f take the datagrams that arrive from now on, as
// compat.HandleDatagrams says.
func (c *Conn) handleDatagrams(f func(b []byte)) {
	c.mu.Lock()
	defer c.unlock()
	_ = c.session.Set(&session.Change{Of: session.OfDatagrams, On: f != nil}) // which does not fail
	if f != nil {
		c.state().handler = &datagramHandler{handle: f}
	} else if c.calls != nil {
		c.calls.handler = nil
	}
}

// handleDatagram locks c.mu to find the handler and count the datagram, and
// passes b to it without a lock of the session. If the handler was removed, or
// the session closed, within the batch, it drops b.
func (c *Conn) handleDatagram(b []byte) {
	c.mu.Lock()
	h := c.handlerOf(b)
	if h == nil {
		return
	}
	h.running.Lock()
	defer h.running.Unlock()
	h.handle(b)
}

// handlerOf counts a datagram that has arrived, and returns the handler that takes it;
// nil: it is dropped. It unlocks c.mu, also if a hook of the trace panics.
func (c *Conn) handlerOf(b []byte) *datagramHandler {
	defer c.unlock()
	h := c.state().handler
	if !c.session.Handed(len(b), h != nil) {
		return nil
	}
	return h
}

// MaxDatagramSize returns the size in bytes of the largest datagram that is known to
// pass: at first what fits into 1200 bytes of UDP payload, or a smaller Config.MTU. The
// first call, or SendDatagram, has the path MTU of an extended peer probed; then what
// fits into that.
func (c *Conn) MaxDatagramSize() int {
	c.mu.Lock()
	defer c.unlock()
	return c.session.DatagramSize()
}

// SendDatagram sends a copy of b as one packet beside the byte stream, for
// ReceiveDatagram or kcp-go's OOB handler: unreliable, unordered, without FEC, and not
// limited by the windows. It does not wait, and returns a *SizeError if b is too large.
// Until the path MTU has been confirmed, and to a legacy peer, all is taken that fits
// into stats.PathMTU.MTU.
//
// b is dropped, and counted as stats.Datagrams.Unsent, if 4096 packets of the session
// wait for the socket, or at the anti-amplification limit (RFC 9000 §8.1). With a cap of
// the rate, up to 256 datagrams wait for 100 ms.
func (c *Conn) SendDatagram(b []byte) error {
	c.mu.Lock()
	defer c.unlock()
	if err := c.session.SendDatagram(b); err != nil {
		return c.opError("write", err)
	}
	return nil
}

// ReceiveDatagram waits for the next datagram of the peer and returns it. At most 256
// wait for it; further ones push out the oldest. Errors are ctx.Err(),
// os.ErrDeadlineExceeded when the read deadline has passed, ErrInUse in a Group, and
// after the last datagram ErrPeerClosed, not io.EOF, if the peer has closed the session.
func (c *Conn) ReceiveDatagram(ctx context.Context) (next []byte, err error) {
	err = c.await(blocking{op: "read", ctx: ctx}, func() (pause, error) {
		s := c.session.State()
		switch {
		case s.Left:
			return pause{}, net.ErrClosed
		case c.io.member != nil:
			return pause{}, errGrouped
		case ctx.Err() != nil:
			return pause{}, ctx.Err()
		case c.io.readDeadline.expired():
			return pause{}, os.ErrDeadlineExceeded
		}
		b, ok := c.session.ReceiveDatagram()
		if ok {
			next = b
			return pause{}, nil
		}
		return pause{on: &c.io.canRead}, s.Err
	}, nil)
	return next, err
}
