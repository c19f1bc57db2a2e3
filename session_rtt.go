package kcp

import (
	"net"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/flushes"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/roundtrip"
)

// measuredByData takes a sample of an ACK; 0 is none. If the application wants to know
// the round-trip time, the next packet takes a PING along.
func (c *session) measuredByData(sample, now time.Duration) {
	if sample > 0 && c.rtt.ByData(sample, now) && c.mayPing(now) {
		c.queuePing(c.measures(), now)
	}
}

// refreshRTT sends a PING with a datagram if the last sample is old: datagrams
// are not acknowledged. Data that is on its way will be.
func (c *session) refreshRTT(now time.Duration) {
	if c.kcp.WaitSend() == 0 && !c.rtt.Recent(now) && c.mayPing(now) {
		c.queuePing(c.measures(), now)
		c.call(c.kcp.sendSignals)
	}
}

// mayPing reports whether the last sample is old enough for a PING the peer can answer.
func (c *session) mayPing(now time.Duration) bool {
	if c.hs.Peer < opening.Extended || c.hs.unvalidated.Load() || c.rtt.Prompt && now-c.rtt.At < roundtrip.RefreshAfter {
		return false
	}
	w := c.measurement()
	return w == nil || w.pingAt == 0 || now-w.pingAt >= roundtrip.RefreshAfter
}

// queuePing queues a PING that measures the round-trip time. It is not repeated,
// and nothing else depends on its answer.
func (c *session) queuePing(w *measurement, now time.Duration) {
	w.ping, w.pingAt = signal{sigPing, c.shared.env.Uint32(), c.shared.env.Uint32()}, max(now, 1)
	c.kcp.signalQueue().add(w.ping)
}

// pongArrived takes the answer to a PING, which may be that of queuePing.
func (c *session) pongArrived(s signal) {
	w := c.measurement()
	if w == nil || w.pingAt == 0 || s != w.ping.answer() {
		return
	}
	w.pong = max(c.step.inputAt-w.pingAt, time.Microsecond)
	w.pingAt = 0
	w.pongs++
	c.rtt.Prompted(w.pong, c.step.inputAt)
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
	flushes flushes.Calls

	ping   signal        // of Ping, or beside datagrams; the last one
	pingAt time.Duration // when it was sent, since the epoch; 0: answered, or none
	pongs  uint32        // answers
	pong   time.Duration // the round-trip time that the last of them has shown
}

// flushDelivers reports whether calls of Flush are to be woken.
func (c *session) flushDelivers() bool {
	w := c.measurement()
	return w != nil && w.flushes.Delivers(c.kcp.position().acked)
}
