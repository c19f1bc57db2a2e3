package kcp

import (
	"math"
	"net"
	"slices"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/opening"
)

// rttState is the round-trip time as the application sees it, of data and of
// signals. The time-outs of data do not depend on it: the state machine has its
// own estimate (RFC 6298).
type rttState struct {
	at       time.Duration // the last sample that counted, since the epoch; 0: none yet
	smoothed uint32        // microseconds; 0: no sample yet
	least    uint32        // microseconds; 0: no sample yet
	jitter   uint32        // mean deviation of the samples, in microseconds
	asked    uint16        // when Stats was called, in seconds since the epoch, modulo 2^16; 0: it was not
	again    bool          // not for the first time in askedFor
	prompt   bool          // smoothed is of answers that leave at once
}

const (
	// refreshAfter is the age of the last sample from which a datagram that is sent
	// takes a PING along, and data if Stats is called now and then.
	refreshAfter = time.Second
	// promptFor is how long the answer to a PING counts in place of what ACKs show,
	// which may have been delayed (RFC 1122 §4.2.3.2).
	promptFor = 3 * time.Second
	// askedFor is for how many seconds after a call of Stats PINGs measure beside data,
	// if it was not the first.
	askedFor = 10
)

// measured takes a sample of the round-trip time, of an answer that leaves at once; 0 is
// none.
func (c *session) measured(sample, now time.Duration) {
	if sample > 0 {
		if c.rtt.again && !c.rtt.prompt {
			c.rtt.smoothed = 0
		}
		c.rtt.add(sample, now)
		c.rtt.prompt = true
	}
}

// measuredByData takes a sample of an ACK, which may have been delayed; 0 is none. If
// the application wants to know the round-trip time, the next packet takes a PING along.
func (c *session) measuredByData(sample, now time.Duration) {
	if sample <= 0 {
		return
	}
	r := &c.rtt
	wanted := r.wanted(now)
	if !wanted || !r.prompt || now-r.at >= promptFor {
		r.add(sample, now)
		r.prompt = false
	}
	if wanted && c.mayPing(now) {
		c.queuePing(c.measures(), now)
	}
}

// add takes a sample.
func (r *rttState) add(sample, now time.Duration) {
	us := uint32(min(max(sample.Microseconds(), 1), math.MaxUint32))
	if r.at == 0 {
		r.least = us
	}
	r.least = min(r.least, us)
	if r.smoothed == 0 {
		r.smoothed, r.jitter = us, 0
	} else {
		off := max(r.smoothed, us) - min(r.smoothed, us)
		r.jitter = uint32((3*uint64(r.jitter) + uint64(off)) / 4)
		r.smoothed = uint32((7*uint64(r.smoothed) + uint64(us)) / 8)
	}
	r.at = max(now, 1)
}

// ask notes that the application wants to know the round-trip time. A single call of
// Stats, or several within a moment, change nothing on the wire.
func (r *rttState) ask(now time.Duration) {
	at := uint16(now/time.Second) + 1
	switch age := at - r.asked; {
	case r.asked == 0 || age >= askedFor:
		r.asked, r.again = at, false
	case r.again || age > 1:
		r.asked, r.again = at, true
	}
}

// wanted reports whether the application asks for the round-trip time now and then.
func (r *rttState) wanted(now time.Duration) bool {
	if r.again && uint16(now/time.Second)+1-r.asked >= askedFor {
		r.asked, r.again = 0, false // else it would be recent again after 18 hours
	}
	return r.again
}

// current returns the smoothed round-trip time. Without a sample that is the
// state machine's, srtt in milliseconds.
func (r *rttState) current(srtt int32) time.Duration {
	if r.smoothed == 0 {
		return time.Duration(srtt) * time.Millisecond
	}
	return time.Duration(r.smoothed) * time.Microsecond
}

// age returns the time since the last sample; 0: none.
func (r *rttState) age(now time.Duration) time.Duration {
	if r.at == 0 {
		return 0
	}
	return now - r.at
}

// refreshRTT sends a PING with a datagram if the last sample is old: datagrams
// are not acknowledged. Data that is on its way will be.
func (c *session) refreshRTT(now time.Duration) {
	recent := c.rtt.at > 0 && now-c.rtt.at < refreshAfter
	if c.kcp.WaitSend() == 0 && !recent && c.mayPing(now) {
		c.queuePing(c.measures(), now)
		c.call(c.kcp.sendSignals)
	}
}

// mayPing reports whether the last sample is old enough for a PING the peer can answer.
func (c *session) mayPing(now time.Duration) bool {
	if c.hs.Peer < opening.Extended || c.hs.unvalidated.Load() || c.rtt.prompt && now-c.rtt.at < refreshAfter {
		return false
	}
	w := c.measurement()
	return w == nil || w.pingAt == 0 || now-w.pingAt >= refreshAfter
}

// queuePing queues a PING that measures the round-trip time. It is not repeated,
// and nothing else depends on its answer.
func (c *session) queuePing(w *measurement, now time.Duration) {
	w.ping, w.pingAt = signal{sigPing, c.shared.env.Uint32(), c.shared.env.Uint32()}, max(now, 1)
	c.kcp.signalQueue().add(w.ping)
}

// pongArrived takes the answer to a PING, which may be queuePing's.
func (c *session) pongArrived(s signal) {
	w := c.measurement()
	if w == nil || w.pingAt == 0 || s != w.ping.answer() {
		return
	}
	w.pong = max(c.step.inputAt-w.pingAt, time.Microsecond)
	w.pingAt = 0
	w.pongs++
	c.measured(w.pong, c.step.inputAt)
	c.step.ready |= writers
}

// cannotPing returns why Ping fails; nil if it does not.
func (c *session) cannotPing() error {
	switch {
	case c.closing.Caller != closing.Uses:
		return net.ErrClosed
	case c.closing.err != nil:
		return c.reason(c.closing.err)
	case c.closing.Phase >= closing.Ended:
		return net.ErrClosed
	case c.hs.Peer < opening.Extended:
		return ErrLegacyPeer
	}
	return nil
}

// measurement is what a session watches for Flush and Ping.
type measurement struct {
	flushed  seq    // the lowest snd_una that a call of Flush waits for
	flushes  bool   // flushed is valid
	flushing []*seq // what each call of Flush waits for

	ping   signal        // of Ping, or beside datagrams; the last one
	pingAt time.Duration // when it was sent, since the epoch; 0: answered, or none
	pongs  uint32        // answers
	pong   time.Duration // the round-trip time that the last of them has shown
}

// beginFlush returns where a call of Flush keeps what snd_una has to reach, until
// endFlush.
func (w *measurement) beginFlush(end seq) *seq {
	w.flushing = append(w.flushing, &end)
	return &end
}

// endFlush records that a call of Flush returns.
func (w *measurement) endFlush(end *seq) {
	w.flushing = slices.DeleteFunc(w.flushing, func(p *seq) bool { return p == end })
}

// overtaken records that a segment of a stream leaves before all that wait, of
// which the first would have been next. w may be nil.
func (w *measurement) overtaken(next seq) {
	if w == nil {
		return
	}
	for _, end := range w.flushing {
		if next.Before(*end) {
			*end++
		}
	}
}

// waitFor records that a call of Flush waits for snd_una to reach end.
func (w *measurement) waitFor(end seq) {
	if !w.flushes || end.Before(w.flushed) {
		w.flushed, w.flushes = end, true
	}
}

// delivers reports whether calls of Flush are to be woken, as snd_una is now
// una. They then ask again. w may be nil.
func (w *measurement) delivers(una seq) bool {
	if w == nil || !w.flushes || una.Before(w.flushed) {
		return false
	}
	w.flushes = false
	return true
}
