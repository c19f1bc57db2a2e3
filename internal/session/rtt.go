package session

import (
	"cmp"
	"net"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/netpath"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/wire"
)

// measuredByData takes a sample of an ACK; 0 is none. If the application wants to know
// the round-trip time, the next packet takes a PING along. After many packets, data or
// ACKs, it takes COUNT along.
func (c *Session) measuredByData(sample, now time.Duration) {
	if sample > 0 && c.rtt.ByData(sample, now) && c.mayPing(now) {
		c.queuePing(now)
	} else if c.outgoing.sent >= c.outgoing.askAt && c.losses.Due(now) {
		c.queueCount(now)
	}
}

// prompted takes a sample of an answer that has left at once. It is the first one of the
// state machine too: the first time-outs of data are those of the path, and an end that
// only receives knows how often a round trip is.
func (c *Session) prompted(rtt time.Duration) {
	c.rtt.Prompted(rtt, c.step.inputAt)
	c.kcp.SeedRTT(uint32((rtt + time.Millisecond - 1) / time.Millisecond))
}

// refreshRTT sends a PING with a datagram if the last sample is old: datagrams
// are not acknowledged. Data that is on its way will be.
func (c *Session) refreshRTT(now time.Duration) {
	if c.kcp.WaitSend() == 0 && !c.rtt.Recent(now) && c.mayPing(now) {
		c.noteOutage(now)
		c.queuePing(now)
		c.call(c.kcp.SendSignals)
	}
}

// measureOpening sends a PING if the opening has not shown the round-trip time: to an end
// that accepts, or whose HELLO was repeated (Karn's algorithm, RFC 6298 §3).
func (c *Session) measureOpening() {
	if c.rtt.At == 0 && c.mayPing(c.step.inputAt) {
		c.queuePing(c.step.inputAt)
	}
}

// mayPing reports whether the last sample is old enough for a PING the peer can answer.
func (c *Session) mayPing(now time.Duration) bool {
	if c.hs.Peer < opening.Extended || c.hs.unvalidated.Load() || c.rtt.Prompt && now-c.rtt.At < netpath.RefreshAfter {
		return false
	}
	last := c.asked.Last()
	return last == 0 || now-last >= netpath.RefreshAfter
}

// queuePing queues a PING that measures the round-trip time. It is not repeated,
// and nothing else depends on its answer.
func (c *Session) queuePing(now time.Duration) {
	c.kcp.SignalQueue().Add(c.newPing(now))
	c.queueCount(now)
}

// newPing returns a PING that is sent now. Its numbers are its own, also if it repeats
// another: the answer shows which of them it is to.
func (c *Session) newPing(now time.Duration) wire.Signal {
	if c.asked == nil {
		c.asked = new(netpath.AskedPings)
	}
	ping := wire.Signal{Code: wire.Ping, SN: c.shared.Env.Uint32(), TS: c.shared.Env.Uint32()}
	c.asked.Sent(ping.SN, ping.TS, max(now, 1))
	return ping
}

// pathLoss returns what the ends have told each other, which it allocates.
func (c *Session) pathLoss() *netpath.Losses {
	if c.losses == nil {
		c.losses = new(netpath.Losses)
	}
	return c.losses
}

// queueCount queues COUNT, if the peer knows it. A PING that is queued just before is no
// challenge then.
func (c *Session) queueCount(now time.Duration) {
	if c.hs.capabilities&CapCounts == 0 {
		return
	}
	o := &c.outgoing
	o.askAt = o.sent + netpath.AskAfter
	sent, missing := c.pathLoss().Ask(o.seen()+1, now)
	c.queueAnswer(wire.Signal{Code: wire.Count, SN: sent, TS: missing})
}

// takeCount takes COUNT, or the answer to it. PROBEs are not counted, as they may be too
// large for the path.
func (c *Session) takeCount(s wire.Signal) {
	if c.hs.capabilities&CapCounts == 0 {
		return
	}
	l, answers := c.pathLoss(), s.Code&wire.Answer != 0
	l.Take(s.SN, s.TS, answers, c.in.packets-min(uint64(c.in.probes), c.in.packets), c.step.inputAt)
	if answers {
		return
	}
	if c.step.ping.Code != 0 { // it was no challenge
		c.step.ping, c.step.challenged = wire.Signal{}, false
		c.kcp.SignalQueue().Take(wire.Signal{Code: wire.Token, SN: c.hs.peerToken, TS: c.hs.token})
	}
	sent, missing := l.Answer(c.outgoing.seen() + 1)
	c.queueAnswer(wire.Signal{Code: wire.Count | wire.Answer, SN: sent, TS: missing})
}

// pongArrived takes the answer to a PING. It reports whether the PING was newPing's.
func (c *Session) pongArrived(s wire.Signal) bool {
	sent, ok := c.asked.Answered(s.SN, s.TS)
	if !ok {
		return false
	}
	if c.asked.Last() == 0 {
		c.asked = nil // a late answer to an earlier PING is of no use
	}
	rtt := max(c.step.inputAt-sent, time.Microsecond)
	c.prompted(rtt)
	if w := c.measurement(); w != nil {
		w.pong, w.pinged = rtt, sent
		c.step.left.Ready |= Writers
	}
	return true
}

// cannotPing returns why Ping fails; nil if it does not.
func (c *Session) cannotPing() error {
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

// PingCall is a call of Ping.
type PingCall struct {
	RTT   time.Duration // once it is answered
	begun bool
	start time.Duration // since the epoch
	Next  time.Duration // when PING is repeated
	wait  time.Duration // how long after the last
}

// Measure asks the peer for the round-trip time. It reports whether it waits for the
// answer; then it is to be called again at call.Next. It fails with why if nothing else
// speaks against it.
func (c *Session) Measure(call *PingCall, why error) (waits bool, err error) {
	w, now := c.measures(), c.host.Now()
	if !call.begun {
		call.begun, call.start = true, now
	}
	if w.pinged >= call.start {
		call.RTT = w.pong
		return false, nil
	}
	if err := cmp.Or(c.cannotPing(), why); err != nil {
		return false, err
	}
	if now >= call.Next {
		call.wait = max(c.requestWait(), min(2*call.wait, opening.MaxWait))
		call.Next = now + call.wait
		c.setClock(now)
		c.queuePing(now)
		c.call(c.kcp.SendSignals)
	}
	return true, nil
}

// FlushCall is a call of Flush.
type FlushCall struct {
	end *machine.Seq // of what was written before; nil: it has not begun
}

// Delivered reports whether all has arrived that was written before a call of Flush. If
// it may still, the call waits, unless why is an error, which it fails with.
func (c *Session) Delivered(call *FlushCall, why error) (bool, error) {
	if call.end == nil {
		call.end = c.measures().flushes.Begin(c.kcp.Position().End)
	}
	// What the peer has not taken before its CLOSE is out of the queue, too.
	discarded := c.closing.Read == closing.ReadClosed && c.closing.Undelivered()
	if !discarded && (!c.kcp.Position().Acked.Before(*call.end) || c.kcp.WaitSend() == 0) {
		return true, nil
	}
	if err := cmp.Or(c.cannotDeliver(), why); err != nil {
		return false, err
	}
	c.rare.measure.flushes.WaitFor(*call.end)
	return false, nil
}

// FlushEnds ends a call of Flush.
func (c *Session) FlushEnds(call *FlushCall) { c.rare.measure.flushes.End(call.end) }

// cannotDeliver returns why what is not acknowledged will not be; nil if it may.
func (c *Session) cannotDeliver() error {
	switch {
	case c.closing.Caller != closing.Uses:
		return net.ErrClosed
	case c.closing.Read == closing.ReadClosed:
		return c.reason(ErrPeerClosed)
	case c.closing.Phase >= closing.Ended:
		c.closing.reported = true
		return c.reason(c.closing.err)
	}
	return nil
}

// measurement is what a session watches for Flush and Ping.
type measurement struct {
	flushes recovery.FlushCalls

	pong   time.Duration // the round-trip time that the last answer to a PING has shown
	pinged time.Duration // when that PING was sent, since the epoch
}

// flushDelivers reports whether calls of Flush are to be woken.
func (c *Session) flushDelivers() bool {
	w := c.measurement()
	return w != nil && w.flushes.Delivers(c.kcp.Position().Acked)
}
