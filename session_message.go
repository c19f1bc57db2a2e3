package kcp

import (
	"net"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/streams"
)

// writeCall is a call that writes to a session or a stream.
type writeCall struct {
	stream  *streams.Stream // nil: the session itself
	b       []byte
	n       int             // queued of b
	message bool            // b is one message, which is queued whole or not at all
	options *messageOptions // of the message; nil: none
	waits   bool            // for other calls that write, and for room
	free    bool            // no other call writes; if one does, there is no room
	half    streams.Half    // of a stream without room: what there has to be room for
	line    *streams.Writer // its place among the calls that wait for that; nil: it does not
	begun   time.Duration   // when the lifetime of the message began
	late    error           // fails the call, as its deadline has passed; nil: it has not
	closed  bool            // the application has closed or reset the stream
}

// cannotWrite returns why nothing may be written to a stream, or if that is nil to the
// session itself; nil if something may.
func (c *session) cannotWrite(w *writeCall) error {
	s := w.stream
	switch {
	case c.closing.Caller != closing.Uses || w.closed:
		return net.ErrClosed
	case s == nil && w.late != nil && !(c.shared.compat.DataBeforeDeadline && c.room() > 0):
		return w.late
	case s == nil:
	case s.CannotWrite() != nil && (w.late == nil || s.CannotWrite() == net.ErrClosed):
		return s.CannotWrite()
	case w.late != nil && (c.closing.err != net.ErrClosed || c.closing.Read == closing.ReadClosed):
		return w.late
	}
	switch {
	case c.closing.Read == closing.ReadClosed:
		return c.reason(ErrPeerClosed)
	case c.closing.err != nil:
		return c.reason(c.closing.err)
	case s == nil && c.closing.Write != closing.WriteOpen:
		return net.ErrClosed
	}
	return nil
}

// write queues as much of w.b as there is room for; a message whole, or not at all. It
// does not wait: ErrWouldBlock means that there is no room, w.half in which half of a
// stream's. Messages whose lifetime is over make room. If the call waits, one round is
// queued, of at most writeBatch segments, so that it is on its way before the next. push
// sends what is queued.
func (c *session) write(w *writeCall) error {
	if w.message && w.stream == nil && !c.messageMode() {
		return errNotMessageMode
	}
	err := c.cannotWrite(w)
	if w.stream == nil && err != nil && err == c.reason(c.closing.err) {
		c.closing.reported = true
	}
	if err == nil || err == w.late && w.goesOn(c.shared.compat.SegmentBound) {
		err = c.queue(w)
	}
	if w.stream != nil && w.free && (w.waits || !w.message || err != ErrWouldBlock) { // else it is meant to be missed
		w.stream.SetCut(err != nil || w.n < len(w.b))
	}
	return err
}

// queue is write for a session, or stream, that may be written to.
func (c *session) queue(w *writeCall) error {
	least := 1
	if s := w.stream; w.message {
		if least = len(w.b); s != nil && least > s.MaxMessage() {
			return c.tooLargeFor(s, least)
		}
	}
	for queued := false; (w.n < len(w.b) || w.message && !queued) && !(queued && w.waits); queued = true {
		room := 0
		if w.stream != nil {
			room, w.half = c.streamRoom(w.stream, least)
		} else if room = c.room(); room <= 0 && w.message {
			c.dropSpentMessages()
			room = c.room()
		}
		var err error
		switch {
		case (room <= 0 || !w.free) && !w.goesOn(c.shared.compat.SegmentBound):
			c.kcp.Refuse()
			return ErrWouldBlock
		case w.message:
			err = c.queueMessage(w)
		case w.stream != nil:
			w.n += w.stream.Write(w.b[w.n:min(w.n+room, len(w.b))])
		default:
			err = c.queueBytes(w, room)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// goesOn reports whether a call goes on that has begun, whatever the room and the
// deadline, as kcp-go's does.
func (w *writeCall) goesOn(segmentBound bool) bool {
	return segmentBound && w.stream == nil && w.waits && w.n > 0
}

// queueBytes queues bytes of w.b to the session itself, which has room bytes free. In
// message mode each segment is a message.
func (c *session) queueBytes(w *writeCall, room int) error {
	payload := c.kcp.Load().Payload
	segments := min(max(room/(payload+machine.WriteCostPerSegment), 1), writeBatch)
	if c.shared.compat.SegmentBound {
		segments = writeBatch
	}
	end := min(len(w.b), w.n+segments*payload)
	for w.n < end {
		piece := w.b[w.n:end]
		if c.messageMode() {
			piece = piece[:min(len(piece), payload)]
		}
		n, err := c.kcp.Send(piece)
		if w.n += n; err != nil {
			return err
		}
	}
	return nil
}

// queueMessage queues w.b as one message, for which there is room.
func (c *session) queueMessage(w *writeCall) (err error) {
	var p streams.Params // of the stream, except for the options
	var done func(error)
	if w.stream != nil {
		p = w.stream.Params()
	}
	if o := w.options; o != nil {
		if ms := lifetimeMillis(o.Lifetime); ms > 0 {
			p.Lifetime = ms
		}
		if o.MaxRetransmits != 0 {
			p.Retransmits = transmissions(o.MaxRetransmits)
		}
		done = o.Done
	}
	deadline := int64(0)
	if p.Lifetime > 0 {
		deadline = c.deadlineLocked(p.Lifetime, w.begun)
	}
	switch {
	case w.stream != nil:
		w.stream.Send(w.b, uint32(p.Retransmits), deadline, done)
	case w.options == nil:
		_, err = c.kcp.Send(w.b)
	default:
		t := &streams.Tag{Limit: uint32(p.Retransmits), Deadline: deadline}
		if err = c.kcp.SendMessage(w.b, t); err == nil {
			c.rarely().messages = true
			if done != nil {
				c.rare.awaiting.Add(t, done)
			}
			c.dropSpentMessages()
		}
	}
	if err != nil {
		return c.sizeError(err, len(w.b))
	}
	w.n = len(w.b)
	return nil
}

// writable reports whether a write of a byte would not wait. If one to a stream would,
// w.half is for which half of its room.
func (c *session) writable(w *writeCall) bool {
	room := 0
	if w.stream == nil {
		room = c.room()
	} else {
		room, w.half = c.streamRoom(w.stream, 1)
	}
	return room > 0 || c.cannotWrite(w) != nil
}

// streamRoom is Room of a stream, for which messages whose lifetime is over make room.
func (c *session) streamRoom(s *streams.Stream, n int) (room int, half streams.Half) {
	if room, half = s.Room(n); room <= 0 {
		c.setClock(c.host.now())
		s.Purge()
		room, half = s.Room(n)
	}
	return room, half
}

// tooLargeFor returns why a stream takes no message of n bytes.
func (c *session) tooLargeFor(s *streams.Stream, n int) error {
	means := "what fits into Config.StreamReceiveBuffer of this end, and the peer has shown no larger one"
	if s.PeerTakesMore() {
		means = "what fits into the peer's Config.StreamReceiveBuffer"
	}
	return c.host.publicError(&tooLargeError{n, s.MaxMessage(), machine.ErrMessageTooLarge, means})
}

// deadlineLocked returns when the lifetime of a message ends, in milliseconds from
// begun on, on the machine's clock in microseconds. Conn.mu is held.
func (c *session) deadlineLocked(lifetime uint32, begun time.Duration) int64 {
	left := time.Duration(lifetime)*time.Millisecond - (c.host.now() - begun)
	c.setClock(c.host.now())
	return c.kcp.Micros() + left.Microseconds()
}

// usesMessages reports whether WriteMessage was called with options.
func (c *session) usesMessages() bool { return c.rare != nil && c.rare.messages }

// dropSpentMessages gives up the messages at the head of the queue whose lifetime
// is over.
func (c *session) dropSpentMessages() {
	if !c.usesMessages() {
		return
	}
	c.setClock(c.host.now())
	for c.kcp.DropSpent() {
	}
}

// GivingUp is the machine's hook for what may become of a message that is given
// up. Once FIN has told the peer how many segments there are, none may be missing.
func (c *session) GivingUp() (drop, abandon bool) {
	l := &c.hs
	extended := l.Peer >= opening.Extended
	return !extended || c.closing.Write == closing.WriteOpen, extended && l.tokensKnown() && l.capabilities&capStreams != 0
}

// messageAcked records that a segment of t was acknowledged.
func (c *session) messageAcked(t *streams.Tag) {
	if t.InFlight == 0 && !t.Abandoned && !c.rare.failed {
		c.finish(t, nil)
	}
}

// messageAbandoned records that the message of t is given up, which may make
// room.
func (c *session) messageAbandoned(t *streams.Tag) {
	c.finish(t, streams.ErrAbandoned)
	c.step.left.ready |= writers
}

// failMessages reports all messages that are not delivered as failed, because of
// err; nil: the session delivers nothing more.
func (c *session) failMessages(err error) {
	if !c.usesMessages() {
		return
	}
	if err == nil {
		err = ErrNotDelivered
	}
	c.rare.failed = true
	drop, abandon := c.GivingUp()
	c.failAll(&c.rare.awaiting, streams.Failure{Err: err, Begun: abandon, Unsent: abandon || drop})
}

// segmentsGivenUp returns how many segments of the session itself the peer lacks
// and need not have.
func (c *session) segmentsGivenUp() int {
	if c.usesMessages() {
		return c.kcp.SegmentsGivenUp()
	}
	return 0
}

// finish lets the receipt of t be called with err, if it was not.
func (c *session) finish(t *streams.Tag, err error) {
	if t.Awaited() {
		c.rarely().receipts.Finish(t, err)
		c.step.left.ready |= receivers
	}
}

// takeReceipts returns receipts that are due. If there are none it drops their memory.
func (c *session) takeReceipts() []streams.Receipt {
	due := c.rare.receipts.Take()
	if len(due) == 0 {
		c.rare.receipts = streams.Receipts{}
	}
	return due
}

// failAll lets the receipts of all messages of a be called with what f says, and
// empties it.
func (c *session) failAll(a *streams.Awaiting, f streams.Failure) {
	if !a.Empty() {
		f.At = c.kcp.Micros()
		c.rarely().receipts.Fail(a, f)
		c.step.left.ready |= receivers
	}
}

// messageOptions are the properties of one message; see kcp.MessageOptions.
type messageOptions struct {
	Lifetime       time.Duration
	MaxRetransmits int
	NoWait         bool
	Done           func(err error)
}

// lifetimeMillis returns d, which is in range, in whole milliseconds, at least one if d is
// positive.
func lifetimeMillis(d time.Duration) uint32 {
	return uint32((d + time.Millisecond - 1) / time.Millisecond)
}

// transmissions returns how often a segment may be sent; 0: any number.
func transmissions(retransmits int) uint16 {
	switch {
	case retransmits == 0:
		return 0
	case retransmits < 0:
		return 1
	}
	return uint16(retransmits + 1)
}
