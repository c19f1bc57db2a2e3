package kcp

import (
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/streams"
)

// queueMessage queues w.b as one message, for which there is room.
func (c *session) queueMessage(w *writeCall) (err error) {
	if w.options == nil {
		_, err = c.kcp.Send(w.b)
	} else {
		t := &streams.Tag{Limit: uint32(transmissions(w.options.MaxRetransmits))}
		if lifetime := lifetimeMillis(w.options.Lifetime); lifetime > 0 {
			t.Deadline = c.deadlineLocked(lifetime, w.begun)
		}
		if err = c.kcp.sendMessage(w.b, t); err == nil {
			c.rarely().messages = true
			if w.options.Done != nil {
				c.rare.awaiting.Add(t, w.options.Done)
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

// machineTimeLocked returns the present on the machine's clock, in microseconds.
func (c *session) machineTimeLocked() int64 {
	c.setClock(c.host.now())
	return c.kcp.micros()
}

// deadlineLocked returns when the lifetime of a message ends, in milliseconds from
// begun on, on the machine's clock in microseconds. Conn.mu is held.
func (c *session) deadlineLocked(lifetime uint32, begun time.Duration) int64 {
	left := time.Duration(lifetime)*time.Millisecond - (c.host.now() - begun)
	return c.machineTimeLocked() + left.Microseconds()
}

// usesMessages reports whether SendMessage was called with options.
func (c *session) usesMessages() bool { return c.rare != nil && c.rare.messages }

// dropSpentMessages gives up the messages at the head of the queue whose lifetime
// is over.
func (c *session) dropSpentMessages() {
	if !c.usesMessages() {
		return
	}
	c.setClock(c.host.now())
	for c.kcp.dropSpent() {
	}
}

// givingUp is the machine's hook for what may become of a message that is given
// up. Once FIN has told the peer how many segments there are, none may be missing.
func (c *session) givingUp() (drop, abandon bool) {
	l := &c.hs
	extended := l.Peer >= opening.Extended
	return !extended || c.closing.Write == closing.WriteOpen, extended && l.tokensKnown() && l.capabilities&capStreams != 0
}

// messageAcked takes note that a segment of t was acknowledged.
func (c *session) messageAcked(t *streams.Tag) {
	if t.InFlight == 0 && !t.Abandoned && !c.rare.failed {
		c.finish(t, nil)
	}
}

// messageAbandoned takes note that the message of t is given up, which may make
// room.
func (c *session) messageAbandoned(t *streams.Tag) {
	c.finish(t, ErrMessageAbandoned)
	c.step.ready |= writers
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
	drop, abandon := c.givingUp()
	c.failAll(&c.rare.awaiting, streams.Failure{Err: err, Begun: abandon, Unsent: abandon || drop})
}

// segmentsGivenUp returns how many segments of the session itself the peer lacks
// and need not have.
func (c *session) segmentsGivenUp() int {
	if c.usesMessages() {
		return c.kcp.segmentsGivenUp()
	}
	return 0
}

// writeCall is a call that writes to a session or a stream.
type writeCall struct {
	b       []byte
	n       int             // queued of b
	message bool            // b is one message, which is queued whole or not at all
	options *MessageOptions // of the message; nil: none
	waits   bool            // for other calls that write, and for room
	free    bool            // no other call writes; if one does, there is no room
	half    streams.Half    // of a stream without room: what there has to be room for
	line    *streams.Writer // its place among the calls that wait for that; nil: it does not
	begun   time.Duration   // when the lifetime of the message began
}

// receipts are those of a session that are due.
type receipts struct {
	streams.Receipts
	running bool // runReceipts is
}

// finish lets the receipt of t be called with err, if it was not.
func (c *session) finish(t *streams.Tag, err error) {
	if t.Awaited() {
		c.rarely().receipts.Finish(t, err)
		c.step.ready |= receivers
	}
}

// failAll lets the receipts of all messages of a be called with what f says, and
// empties it.
func (c *session) failAll(a *streams.Awaiting, f streams.Failure) {
	if !a.Empty() {
		f.At = c.kcp.micros()
		c.rarely().receipts.Fail(a, f)
		c.step.ready |= receivers
	}
}

// MessageOptions are the properties of one message, of a stream or of a session.
type MessageOptions struct {
	// Lifetime and MaxRetransmits take the place of MaxLifetime and MaxRetransmits of the
	// stream, if they are not 0. For a message of the session itself 0 means no limit.
	Lifetime       time.Duration
	MaxRetransmits int
	// Done, if not nil, is called exactly once, if SendMessage has returned nil: with nil
	// when the peer's endpoint has acknowledged the whole message. Otherwise the argument
	// says why that is not known: ErrMessageAbandoned, a *StreamError, or the error with
	// which the session ended; the message may have arrived all the same.
	//
	// Done runs without locks on a goroutine of the session, after those of messages that
	// came to their end before: it may send, and wait.
	Done func(err error)
}
