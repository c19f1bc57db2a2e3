package kcp

import (
	"net"
	"time"
)

// The end of a session with streams. CLOSE says how many segments there are, so
// first all that waits on streams is given to the machine.

// purgeInterval is how often Close looks for messages whose lifetime is over. That
// takes a look at each stream, which is not for each packet.
const purgeInterval = 50 * time.Millisecond

// streamsClosing reports whether Close waits for what streams have to send.
func (c *Conn) streamsClosing() bool { return c.streams != nil && c.streams.closing }

// closeStreams closes all streams. It reports whether some of them have more to
// send; advanceClose calls beginClose later then.
func (c *Conn) closeStreams(now time.Duration) bool {
	t := c.streams
	if t == nil || t.failed {
		return false
	}
	t.announceLocked()
	for _, s := range t.streams {
		s.in.stop = true
		s.endReadingLocked(net.ErrClosed)
		s.finishLocked()
		s.canWrite.Broadcast()
		t.retireLocked(s)
	}
	t.backlog, t.refused = nil, nil
	t.canAccept.Broadcast()
	if t.drainedLocked() {
		return false
	}
	t.closing, t.closeMark = true, c.kcp.sendUna()
	c.wait(now)
	return true
}

// drainedLocked reports whether nothing waits on any stream.
func (t *streamTable) drainedLocked() bool { return !t.sched.busy() && t.sched.unsent == 0 }

// undelivered reports whether the peer lacks something of what was written. What
// the application allowed to be given up does not count: messages whose lifetime or
// retransmissions are used up, and streams that were reset.
func (c *Conn) undelivered() bool {
	segments, _ := c.kcp.streamLoad()
	if t := c.streams; t != nil && !t.failed {
		now := c.kcp.micros()
		for _, s := range t.streams {
			if s.owesLocked(now) {
				return true
			}
		}
	}
	return c.kcp.WaitSend() > segments && c.kcp.WaitSend() > segments+c.segmentsGivenUp()
}

// owesLocked reports whether the peer lacks something of what was written to s,
// and not given up at the time now.
func (s *Stream) owesLocked(now int64) bool {
	o := &s.out
	if o.reset {
		return false
	}
	if o.chunks != nil && o.chunks.flight > 0 {
		return true
	}
	for m := o.begun.first; m != nil; m = m.later {
		if !m.over() && !m.spent(now, 0) {
			return true
		}
	}
	if o.first == nil || o.latest <= now {
		return false // they may be many
	}
	if !o.last.spent(now, 0) {
		return true
	}
	for m := o.first; m != nil; m = m.next {
		if !m.spent(now, 0) {
			return true
		}
	}
	return false
}

// advanceClose goes on with Close once streams have nothing more to send, or have
// made no progress for long enough.
func (c *Conn) advanceClose(now time.Duration) {
	t := c.streams
	if t == nil || !t.closing || c.closing.state == stateEnded {
		return
	}
	if una := c.kcp.sendUna(); una != t.closeMark {
		t.closeMark = una
		c.wait(now)
	}
	if !t.failed && now >= t.purgeAt {
		t.purgeAt = now + purgeInterval
		for _, s := range t.streams {
			s.purgeLocked(c.kcp.micros()) // what has no credit is not pulled
		}
	}
	switch {
	case t.failed || t.drainedLocked():
	case now >= c.closing.endAt:
		for _, s := range t.streams {
			if s.out.first != nil {
				c.closing.undelivered = true
				s.dropUnsentLocked(ErrNotDelivered)
			}
			t.sched.remove(s)
		}
	default:
		return
	}
	t.closing = false
	c.beginClose(now)
	c.wake(now) // which sends CLOSE
}

// bulkAhead is how many bytes of the session itself may wait while there are
// streams. What has been queued once has its place before them.
const bulkAhead = 64 << 10

// roomBesideStreams returns the free bytes of the write buffer in a session with
// streams; room is what it would be if their segments counted.
func (c *Conn) roomBesideStreams(room int) int {
	segments, bytes := c.kcp.streamLoad()
	room += bytes + segments*writeCostPerSegment
	if len(c.streams.streams) > 0 {
		room = min(room, bulkAhead-c.kcp.unsent()*(c.kcp.segmentPayload()+writeCostPerSegment))
	}
	return room
}
