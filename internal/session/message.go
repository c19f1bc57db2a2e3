package session

import (
	"net"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/streams"
)

// WriteCall is a call that writes to a session or a stream.
type WriteCall struct {
	Stream  *streams.Stream // nil: the session itself
	B       []byte
	N       int             // queued of B
	Message bool            // B is one message, which is queued whole or not at all
	Options *MessageOptions // of the message; nil: none
	Waits   bool            // for other calls that write, and for room
	Free    bool            // no other call writes; if one does, there is no room
	Half    streams.Half    // of a stream without room: what there has to be room for
	Line    *streams.Writer // its place among the calls that wait for that; nil: it does not
	Begun   time.Duration   // when the lifetime of the message began
	Late    error           // fails the call, as its deadline has passed; nil: it has not
	Closed  bool            // the application has closed or reset the stream
}

// cannotWrite returns why nothing may be written to a stream, or if that is nil to the
// session itself; nil if something may.
func (c *Session) cannotWrite(w *WriteCall) error {
	s := w.Stream
	switch {
	case c.closing.Caller != closing.Uses || w.Closed:
		return net.ErrClosed
	case s == nil && w.Late != nil && !(c.shared.Compat.DataBeforeDeadline && c.Room() > 0):
		return w.Late
	case s == nil:
	case s.CannotWrite() != nil && (w.Late == nil || s.CannotWrite() == net.ErrClosed):
		return s.CannotWrite()
	case w.Late != nil && (c.closing.err != net.ErrClosed || c.closing.Read == closing.ReadClosed):
		return w.Late
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

// Write queues as much of w.B as there is room for; a message whole, or not at all. It
// does not wait: ErrWouldBlock means that there is no room, w.Half in which half of a
// stream's. Messages whose lifetime is over make room. If the call waits, one round is
// queued, of at most WriteBatch segments, so that it is on its way before the next. Push
// sends what is queued.
func (c *Session) Write(w *WriteCall) error {
	if w.Message && w.Stream == nil && !c.messageMode() {
		return ErrNotMessageMode
	}
	err := c.cannotWrite(w)
	if w.Stream == nil && err != nil && err == c.reason(c.closing.err) {
		c.closing.reported = true
	}
	if err == nil || err == w.Late && w.goesOn(c.shared.Compat.SegmentBound) {
		err = c.queue(w)
	}
	if w.Stream != nil && w.Free && (w.Waits || !w.Message || err != ErrWouldBlock) { // else it is meant to be missed
		w.Stream.SetCut(err != nil || w.N < len(w.B))
	}
	return err
}

// queue is Write for a session, or stream, that may be written to.
func (c *Session) queue(w *WriteCall) error {
	least := 1
	if s := w.Stream; w.Message {
		if least = len(w.B); s != nil && least > s.MaxMessage() {
			return c.tooLargeFor(s, least)
		}
	}
	for queued := false; (w.N < len(w.B) || w.Message && !queued) && !(queued && w.Waits); queued = true {
		room := 0
		if w.Stream != nil {
			room, w.Half = c.streamRoom(w.Stream, least)
		} else if room = c.Room(); room <= 0 && w.Message {
			c.dropSpentMessages()
			room = c.Room()
		}
		var err error
		switch {
		case (room <= 0 || !w.Free) && !w.goesOn(c.shared.Compat.SegmentBound):
			c.kcp.Refuse()
			return ErrWouldBlock
		case w.Message:
			err = c.queueMessage(w)
		case w.Stream != nil:
			w.N += w.Stream.Write(w.B[w.N:min(w.N+room, len(w.B))])
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
func (w *WriteCall) goesOn(segmentBound bool) bool {
	return segmentBound && w.Stream == nil && w.Waits && w.N > 0
}

// queueBytes queues bytes of w.B to the session itself, which has room bytes free. In
// message mode each segment is a message.
func (c *Session) queueBytes(w *WriteCall, room int) error {
	payload := c.kcp.Load().Payload
	segments := min(max(room/(payload+machine.WriteCostPerSegment), 1), WriteBatch)
	if c.shared.Compat.SegmentBound {
		segments = WriteBatch
	}
	end := min(len(w.B), w.N+segments*payload)
	for w.N < end {
		piece := w.B[w.N:end]
		if c.messageMode() {
			piece = piece[:min(len(piece), payload)]
		}
		n, err := c.kcp.Send(piece)
		if w.N += n; err != nil {
			return err
		}
	}
	return nil
}

// queueMessage queues w.B as one message, for which there is room.
func (c *Session) queueMessage(w *WriteCall) (err error) {
	var p streams.Params // of the stream, except for the options
	var done func(error)
	if w.Stream != nil {
		p = w.Stream.Params()
	}
	if o := w.Options; o != nil {
		if ms := LifetimeMillis(o.Lifetime); ms > 0 {
			p.Lifetime = ms
		}
		if o.MaxRetransmits != 0 {
			p.Retransmits = Transmissions(o.MaxRetransmits)
		}
		done = o.Done
	}
	deadline := int64(0)
	if p.Lifetime > 0 {
		deadline = c.deadlineLocked(p.Lifetime, w.Begun)
	}
	switch {
	case w.Stream != nil:
		w.Stream.Send(w.B, uint32(p.Retransmits), deadline, done)
	case w.Options == nil:
		_, err = c.kcp.Send(w.B)
	default:
		t := &streams.Tag{Limit: uint32(p.Retransmits), Deadline: deadline}
		if err = c.kcp.SendMessage(w.B, t); err == nil {
			c.rarely().messages = true
			if done != nil {
				c.rare.awaiting.Add(t, done)
			}
			c.dropSpentMessages()
		}
	}
	if err != nil {
		return c.sizeError(err, len(w.B))
	}
	w.N = len(w.B)
	return nil
}

// Writable reports whether a write of a byte would not wait. If one to a stream would,
// w.Half is for which half of its room.
func (c *Session) Writable(w *WriteCall) bool {
	room := 0
	if w.Stream == nil {
		room = c.Room()
	} else {
		room, w.Half = c.streamRoom(w.Stream, 1)
	}
	return room > 0 || c.cannotWrite(w) != nil
}

// streamRoom is Room of a stream, for which messages whose lifetime is over make room.
func (c *Session) streamRoom(s *streams.Stream, n int) (room int, half streams.Half) {
	if room, half = s.Room(n); room <= 0 {
		c.setClock(c.host.Now())
		s.Purge()
		room, half = s.Room(n)
	}
	return room, half
}

// tooLargeFor returns why a stream takes no message of n bytes.
func (c *Session) tooLargeFor(s *streams.Stream, n int) error {
	means := "what fits into Config.StreamReceiveBuffer of this end, and the peer has shown no larger one"
	if s.PeerTakesMore() {
		means = "what fits into the peer's Config.StreamReceiveBuffer"
	}
	return c.host.PublicError(&SizeError{n, s.MaxMessage(), machine.ErrMessageTooLarge, means})
}

// deadlineLocked returns when the lifetime of a message ends, in milliseconds from
// begun on, on the machine's clock in microseconds. Conn.mu is held.
func (c *Session) deadlineLocked(lifetime uint32, begun time.Duration) int64 {
	left := time.Duration(lifetime)*time.Millisecond - (c.host.Now() - begun)
	c.setClock(c.host.Now())
	return c.kcp.Micros() + left.Microseconds()
}

// usesMessages reports whether WriteMessage was called with options.
func (c *Session) usesMessages() bool { return c.rare != nil && c.rare.messages }

// dropSpentMessages gives up the messages at the head of the queue whose lifetime
// is over.
func (c *Session) dropSpentMessages() {
	if !c.usesMessages() {
		return
	}
	c.setClock(c.host.Now())
	for c.kcp.DropSpent() {
	}
}

// GivingUp is the machine's hook for what may become of a message that is given
// up. Once FIN has told the peer how many segments there are, none may be missing.
func (c *Session) GivingUp() (drop, abandon bool) {
	l := &c.hs
	extended := l.Peer >= opening.Extended
	return !extended || c.closing.Write == closing.WriteOpen, extended && l.tokensKnown() && l.capabilities&CapStreams != 0
}

// messageAcked records that a segment of t was acknowledged.
func (c *Session) messageAcked(t *streams.Tag) {
	if t.InFlight == 0 && !t.Abandoned && !c.rare.failed {
		c.finish(t, nil)
	}
}

// messageAbandoned records that the message of t is given up, which may make
// room.
func (c *Session) messageAbandoned(t *streams.Tag) {
	c.finish(t, streams.ErrAbandoned)
	c.step.left.Ready |= Writers
}

// failMessages reports all messages that are not delivered as failed, because of
// err; nil: the session delivers nothing more.
func (c *Session) failMessages(err error) {
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
func (c *Session) segmentsGivenUp() int {
	if c.usesMessages() {
		return c.kcp.SegmentsGivenUp()
	}
	return 0
}

// finish lets the receipt of t be called with err, if it was not.
func (c *Session) finish(t *streams.Tag, err error) {
	if t.Awaited() {
		c.rarely().receipts.Finish(t, err)
		c.step.left.Ready |= Receivers
	}
}

// TakeReceipts returns receipts that are due. If there are none it drops their memory.
func (c *Session) TakeReceipts() []streams.Receipt {
	due := c.rare.receipts.Take()
	if len(due) == 0 {
		c.rare.receipts = streams.Receipts{}
	}
	return due
}

// failAll lets the receipts of all messages of a be called with what f says, and
// empties it.
func (c *Session) failAll(a *streams.Awaiting, f streams.Failure) {
	if !a.Empty() {
		f.At = c.kcp.Micros()
		c.rarely().receipts.Fail(a, f)
		c.step.left.Ready |= Receivers
	}
}

// MessageOptions are the properties of one message; see kcp.MessageOptions.
type MessageOptions struct {
	Lifetime       time.Duration
	MaxRetransmits int
	NoWait         bool
	Done           func(err error)
}

// LifetimeMillis returns d, which is in range, in whole milliseconds, at least one if d is
// positive.
func LifetimeMillis(d time.Duration) uint32 {
	return uint32((d + time.Millisecond - 1) / time.Millisecond)
}

// Transmissions returns how often a segment may be sent; 0: any number.
func Transmissions(retransmits int) uint16 {
	switch {
	case retransmits == 0:
		return 0
	case retransmits < 0:
		return 1
	}
	return uint16(retransmits + 1)
}
