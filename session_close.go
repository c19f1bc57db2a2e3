package kcp

import (
	"net"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/opening"
)

// startClose starts what Close waits for, unless it goes on in the background.
// Calls of the application were stopped. If whole is set, its last write to a stream may
// have been the end of that.
func (c *session) startClose(background, whole bool) {
	now := c.host.now()
	c.closing.Begin(now, c.shared.config.MaxLinger, background)
	if c.closeStreams(now, whole) {
		c.push()
	} else {
		c.beginClose(now)
		c.kick(now)
	}
}

// beginClose begins to linger: no more is written than the machine has.
func (c *session) beginClose(now time.Duration) {
	c.dropSpentMessages()
	with := c.closingSession()
	c.closing.Close(now, &with)
	c.hs.Unanswered &^= opening.Finish // CLOSE takes the place of FIN
	if c.kcp.receiver().ackAgain() {
		c.flush(now) // in front of CLOSE, by which the peer judges what was delivered
	}
	c.dropReceived()
	c.traceState(SessionClosing, nil)
}

// closingSession returns what else than c.closing decides how the session ends.
func (c *session) closingSession() closing.Session {
	l := &c.hs
	s := closing.Session{
		Next: c.kcp.position().received, Una: c.kcp.position().acked,
		Unsent:  c.kcp.WaitSend() > 0,
		Streams: c.streams != nil,
		Signals: l.Peer >= opening.Extended,
	}
	// Without a HELLO that is out, or if nothing was written and nothing has arrived,
	// it does not matter any more what the peer is.
	s.Unsure = l.Peer == opening.Unknown && l.Unanswered&opening.Hello != 0 && (l.Reached || s.Una != 0)
	return s
}

// giveUp ends a closed session that has made no progress for long enough. If
// the peer has all data, except what was given up, Close returns, and the session
// repeats CLOSE in the background.
func (c *session) giveUp(now time.Duration) {
	if c.closing.GoOn(now, c.undelivered()) {
		c.step.ready |= writers
		return
	}
	c.abort(ErrNotDelivered)
}

// dropReceived drops what the application will not read, and takes no more data.
func (c *session) dropReceived() {
	c.kcp.closeReceive()
	if q := c.in.datagrams; q != nil {
		q.Clear()
	}
	c.dropStreams(net.ErrClosed)
}

// stopCalls makes blocked and future calls of the application return net.ErrClosed.
func (c *session) stopCalls() {
	c.closing.Stop()
	c.step.ready |= stopped | readers | writers
	c.wakeStreams()
}

// helloAfterData is how long CloseWrite waits for a HELLO after the data that has opened
// a session. A HELLO that was sent before the data, and lost, is repeated by then.
const helloAfterData = opening.FirstHello + 100*time.Millisecond

// leave ends a closed session in order. For a legacy peer that has sent data,
// it drains: the peer's retransmissions are acknowledged for some time.
func (c *session) leave(now time.Duration) {
	if c.hs.Peer >= opening.Extended || c.kcp.counts().SegmentsReceived == 0 {
		c.end(nil)
		return
	}
	c.closing.Drain(now, time.Duration(c.kcp.sender().rto())*time.Millisecond)
	c.traceState(SessionDraining, nil)
	c.host.linger()
	c.wakeAll()
	c.compact()
}

// endDraining ends a session that is only there to acknowledge what a
// legacy peer repeats.
func (c *session) endDraining() {
	if c.closing.Phase == closing.Draining {
		c.end(nil)
	}
}

// abort ends the session with err. It sends ABORT to an extended peer, unless both
// directions are over. If the peer's address is not validated, TIME-WAIT does that when
// a packet arrives, except for an endpoint that is closed.
func (c *session) abort(err error) {
	if c.closing.Phase >= closing.Ended {
		return
	}
	done := false
	defer c.endIfUnwound(&done)
	closed := c.host.stopped()
	if l := &c.hs; l.Peer >= opening.Extended && !c.over() && (closed || !c.hs.unvalidated.Load()) {
		abort := signal{sigAbort, l.peerToken, 0}
		if r := l.reasons; r != nil && r.abrupt && l.capabilities&capReason != 0 {
			c.kcp.signalQueue().replace(signal{sigClose, uint32(c.kcp.position().end), l.peerToken}, abort)
		} else {
			c.kcp.signalQueue().replace(abort)
		}
		if c.hs.securing && closed {
			c.abortTLS(abort)
		} else {
			c.kcp.sendSignals()
		}
	}
	c.end(err)
	done = true
}

// end ends the session with err. unlock removes it from the endpoint once the
// collected packets are written. Data that has arrived can still be read. After
// it, Read returns err, as Write does, if err is not nil.
func (c *session) end(err error) {
	if c.closing.Phase >= closing.Ended {
		return
	}
	if (err == nil || err == ErrPeerClosed) && c.kcp.receiver().acksPending() {
		c.flush(c.host.now()) // the ACKs cannot wait any longer
	}
	c.closing.End()
	c.closing.err = err
	c.limits = c.limitClock().End(c.hs.born, c.host.now())
	if err != nil && c.undelivered() {
		c.closing.Lacks()
	}
	c.failMessages(c.reason(err))
	c.failStreams(c.reason(err))
	c.wakeStreams()
	if c.hs.Role == opening.Accepted || c.closing.Caller != closing.Uses || err == errOwnAddress { // the data is not for the application
		c.dropReceived()
		c.account()
	}
	c.traceState(SessionEnded, err)
	c.kcp.SetTrace(nil)
}

// release gives up what an ended session holds.
func (c *session) release() {
	c.closing.Retire()
	if c.hs.unvalidated.CompareAndSwap(true, false) {
		c.shared.load.halfOpen.Add(-1)
	}
	c.closeTLS()
	c.kcp.receiver().dropAcks()
	c.kcp.signalQueue().drop()
	c.kcp.Compact()
	if c.path.validation != nil {
		c.path.validation.Drop()
	}
	c.dropDecoder()
	c.dropHeld()
	c.leaveTurn()
	c.account()
	c.accountWrites()
}

// dropDecoder releases the FEC decoder, and keeps its statistics.
func (c *session) dropDecoder() {
	if c.in.decoder != nil {
		stats := c.in.decoder.Stats()
		c.in.decoder, c.rarely().decoded = nil, &stats
	}
}

// discard ends, with err, a session that no application has.
func (c *session) discard(err error) {
	c.hs.dropped = true
	c.forget(err)
}

// forget ends the session with err, and all calls of the application with net.ErrClosed.
func (c *session) forget(err error) {
	c.stopCalls()
	c.dropReceived()
	c.account()
	c.abort(err)
}

// holdSocket returns how long the endpoint's socket must stay open after the session's
// end to answer the peer. The peer has announced its end, and our acknowledgement, our
// last packet, may have been lost, as may the reason of an abort. Or the peer does not
// know that the session was dropped: within the handshake, only an answer tells it.
func (c *session) holdSocket() time.Duration {
	dropped, explained := c.hs.dropped && c.hs.Peer >= opening.Extended, c.hs.reasons != nil && c.hs.reasons.abrupt
	switch {
	case dropped && !c.hs.Confirmed:
		return closing.MaxHold // the round-trip time is not known
	case !dropped && !explained && c.closing.Read == closing.ReadOpen:
		return 0
	}
	if c.host.ownSocket() {
		return closing.DialledHold
	}
	n := c.kcp.counts()
	return closing.AnswerFor(time.Duration(c.kcp.sender().rto())*time.Millisecond, n.Retransmits()+n.Duplicates > 0)
}

// progress advances the session's state after input, an application's call or a timer.
func (c *session) progress(now time.Duration) {
	if c.closing.Phase >= closing.Draining {
		return
	}
	if c.closing.Read == closing.ReadClosed && (c.kcp.WaitSend() > 0 || c.streams != nil) {
		// The una of the peer's CLOSE covers all that it ever took.
		if c.undelivered() {
			c.closing.Lacks()
		}
		c.failMessages(c.reason(ErrPeerClosed))
		c.failStreams(c.reason(ErrPeerClosed))
		c.kcp.discardSend()
		c.step.ready |= writers
	}
	c.advanceClose(now)
	if c.closing.Phase == closing.Lingering {
		c.closing.Progress(now, c.kcp.position().acked, c.confirmingMTU(now))
	}
	if c.hs.kindAwaited && c.hs.Peer != opening.Unknown {
		c.hs.kindAwaited = false
		c.step.ready |= writers
	}
	if c.closing.ending != nil {
		c.end(c.closing.ending)
		return
	}
	with := c.closingSession()
	switch c.closing.Step(now, &with) {
	case closing.PeerClosed:
		c.end(ErrPeerClosed)
	case closing.Delivered:
		c.leave(now)
	case closing.Overdue:
		c.giveUp(now)
	}
}

// over reports whether both directions have ended, so that the session needs
// nothing more from the peer.
func (c *session) over() bool {
	with := c.closingSession()
	return c.closing.Over(&with)
}

// allReceived reports whether all of the peer's data up to its FIN or CLOSE has
// arrived.
func (c *session) allReceived() bool { return c.closing.AllReceived(c.kcp.position().received) }

// takeFin takes the end of the peer's data from a FIN or CLOSE. It reports
// false if that end is impossible.
func (c *session) takeFin(s signal) bool {
	with := c.closingSession()
	return c.closing.TakeFinal(seq(s.sn), s.code == sigClose, &with)
}

// takeReset takes a RESET, our stateless reset (RFC 9000 §10.3). It ends the session if s
// echoes a waiting request's arguments, which only the peer and the path can know.
func (c *session) takeReset(s signal) {
	l := &c.hs
	for _, k := range opening.Kinds {
		r := l.Of(k)
		if k == opening.Ping || !l.Asked(k) || r.Signal.sn != s.sn || r.Signal.ts != s.ts {
			continue
		}
		if k == opening.Hello && (l.Role == opening.Quiet || c.rare.simultaneous() && l.capabilities&capTLS == 0) {
			continue // the peer may come later
		}
		c.forgotten(k)
	}
	if c.asked.Waits(s.sn, s.ts) {
		c.forgotten(opening.Ping)
	}
}

// forgotten ends the session after the batch of input, as the peer does not know
// it any more. k is the request that has shown it.
func (c *session) forgotten(k opening.Kind) {
	l := &c.hs
	c.closing.ending = ErrReset
	l.peerToken = 0 // the peer does not know the session: TIME-WAIT answers nothing
	if k == opening.Hello {
		c.closing.ending = ErrRefused
		if l.capabilities&capTLS != 0 {
			c.closing.ending = ErrTLSRequired
		}
	}
	if k == opening.Ping && l.Asked(opening.Finish) {
		k = opening.Finish // is unanswered as well
	}
	if k == opening.Finish && c.kcp.WaitSend() == 0 {
		// The peer had all data, and has forgotten the session since.
		c.closing.ending = nil
		l.Unanswered &^= opening.Finish
		c.closing.Answer()
	}
}

// closeForShutdown starts to close the session, or makes a close
// in the background one that can be waited for.
func (c *session) closeForShutdown() {
	if c.closing.Linger <= 0 {
		c.closing.Linger = defaultLinger
	}
	switch {
	case c.closing.Phase >= closing.Ended:
		c.stopCalls()
	case c.closing.Caller == closing.Uses:
		c.stopCalls()
		c.startClose(false, false)
	case c.closing.Await(c.host.now()):
		c.schedule(c.host.now())
	}
}

// shutting reports whether Shutdown has to wait for the session.
func (c *session) shutting() bool {
	given := c.closing.Caller == closing.Leaves && c.closing.Phase == closing.Lingering && c.kcp.WaitSend() == 0
	return c.closing.Phase != closing.Retired && !given
}

// unreachable handles ECONNREFUSED: no socket is open at the peer's address. It ends a
// session that waits for a first answer, or only for the answer to CLOSE.
func (c *session) unreachable() {
	switch {
	case !c.hs.Reached && c.hs.Unanswered&opening.Hello != 0 && c.hs.Role != opening.Quiet && !c.rare.simultaneous():
		c.end(ErrRefused)
	case c.closing.Phase == closing.Lingering && c.kcp.WaitSend() == 0:
		c.end(nil)
	}
}
