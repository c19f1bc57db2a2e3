package session

import (
	"errors"
	"net"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/trace"
)

// CloseCall is a call of the application that ends a session.
type CloseCall struct {
	Abrupt     bool // Abort, which delivers nothing more
	Background bool // Close does not wait
	Explained  bool // the peer gets code and text
	Code       uint64
	Text       string
	Keeps      bool     // Close leaves in Received what could be read
	Received   [][]byte // messages
	begun      bool
}

// Close is Close or Abort without waiting, which begins unless it has begun. It reports
// whether Close has to wait.
func (c *Session) Close(call *CloseCall) (waits bool, err error) {
	s := &c.closing
	switch {
	case call.Abrupt:
		return false, c.closeAbruptly(call)
	case !call.begun:
		call.begun = true
		for size := c.kcp.PeekSize(); call.Keeps && size >= 0; size = c.kcp.PeekSize() {
			b := make([]byte, size)
			_, _ = c.kcp.Recv(b) // it is there, and fits
			call.Received = append(call.Received, b)
		}
		if s.Caller != closing.Uses {
			return false, net.ErrClosed
		}
		if call.Explained {
			c.closeReasons().ours = c.encodeReason(call.Code, call.Text, wire.HeaderSize)
		}
		c.stopCalls()
		if s.Phase >= closing.Ended {
			return false, c.closeEnded()
		}
		c.startClose(s.Linger <= 0 || call.Background, !call.Explained)
	}
	switch {
	case s.Caller != closing.Leaves && s.Closing():
		return true, nil
	case !s.Undelivered():
		return false, nil
	case s.Phase >= closing.Ended && s.err != nil && s.err != ErrPeerClosed:
		return false, s.err
	}
	return false, ErrNotDelivered
}

// closeEnded is Close for a session that has ended before. It returns why what was
// written is lost, unless a call has returned it.
func (c *Session) closeEnded() error {
	c.dropReceived()
	c.kcp.Compact()
	c.account()
	switch s := &c.closing; {
	case s.Undelivered() && s.Read == closing.ReadClosed:
		return ErrNotDelivered
	case s.Undelivered() && !s.reported && !errors.Is(s.err, net.ErrClosed):
		return s.err
	}
	return nil
}

// closeAbruptly is Abort.
func (c *Session) closeAbruptly(call *CloseCall) error {
	if call.Explained && c.closing.Phase < closing.Ended {
		r := c.closeReasons()
		r.ours, r.abrupt = c.encodeReason(call.Code, call.Text, 2*wire.HeaderSize), true
	}
	if c.closing.Caller != closing.Uses && c.closing.Phase >= closing.Ended {
		return net.ErrClosed
	}
	c.forget(net.ErrClosed)
	return nil
}

// CloseWrite is Conn.CloseWrite without waiting. It reports whether CloseWrite has to wait for
// the peer's kind, and until when: a time since the epoch, 0 for however long. late says
// that its deadline has passed; then it does nothing for that.
func (c *Session) CloseWrite(late bool) (waits bool, until time.Duration, err error) {
	l, now := &c.hs, c.host.Now()
	switch {
	case c.closing.Caller != closing.Uses || c.closing.Write != closing.WriteOpen:
		return false, 0, net.ErrClosed
	case c.closing.Read == closing.ReadClosed && !c.closing.Undelivered() && c.reason(ErrPeerClosed) == ErrPeerClosed:
		return false, 0, nil
	case c.closing.Read == closing.ReadClosed:
		return false, 0, c.reason(ErrPeerClosed)
	case c.closing.err != nil:
		return false, 0, c.reason(c.closing.err)
	case l.Peer >= opening.Extended:
		c.dropSpentMessages()
		c.closing.Fin()
		c.step.left.Ready |= Writers
		c.kick(now)
		return false, 0, nil
	case l.Peer == opening.Legacy, l.Role < opening.Dialled && now-l.born >= HelloAfterData:
		return false, 0, ErrLegacyPeer
	case late:
		return true, 0, nil
	}
	until = c.awaitKind()
	if l.Role == opening.Quiet && l.silent() && c.beginOpening(now) {
		c.kick(now)
	}
	return true, until, nil
}

// awaitKind has the calls that write tried again once the peer's kind is known. It
// returns until when they wait for that; 0: however long.
func (c *Session) awaitKind() (until time.Duration) {
	c.hs.kindAwaited = true
	if c.hs.Role < opening.Dialled {
		return c.hs.born + HelloAfterData
	}
	return 0
}

// startClose starts what Close waits for, unless it goes on in the background.
// Calls of the application were stopped. If whole is set, its last write to a stream may
// have been the end of that.
func (c *Session) startClose(background, whole bool) {
	now := c.host.Now()
	c.closing.Begin(now, c.shared.Config.MaxLinger, background)
	if c.closeStreams(now, whole) {
		c.Push()
	} else {
		c.beginClose(now)
		c.kick(now)
	}
}

// beginClose begins to linger: no more is written than the machine has.
func (c *Session) beginClose(now time.Duration) {
	c.dropSpentMessages()
	with := c.closingSession()
	c.closing.Close(now, &with)
	c.hs.Unanswered &^= opening.Finish // CLOSE takes the place of FIN
	if c.kcp.Receiver().AckAgain() {
		c.flush(now) // in front of CLOSE, by which the peer judges what was delivered
	}
	c.dropReceived()
	c.traceState(trace.SessionClosing, nil)
}

// closingSession returns what else than c.closing decides how the session ends.
func (c *Session) closingSession() closing.Session {
	l := &c.hs
	s := closing.Session{
		Next: c.kcp.Position().Received, Una: c.kcp.Position().Acked,
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
func (c *Session) giveUp(now time.Duration) {
	if c.closing.GoOn(now, c.undelivered()) {
		c.step.left.Ready |= Writers
		return
	}
	c.abort(ErrNotDelivered)
}

// dropReceived drops what the application will not read, and takes no more data.
func (c *Session) dropReceived() {
	c.kcp.CloseReceive()
	if q := c.in.datagrams; q != nil {
		q.Clear()
	}
	c.dropStreams(net.ErrClosed)
}

// stopCalls makes blocked and future calls of the application return net.ErrClosed.
func (c *Session) stopCalls() {
	c.closing.Stop()
	c.step.left.Ready |= Stopped | Readers | Writers
	c.WakeStreams()
}

// HelloAfterData is how long CloseWrite waits for a HELLO after the data that has opened
// a session. A HELLO that was sent before the data, and lost, is repeated by then.
const HelloAfterData = opening.FirstHello + 100*time.Millisecond

// leave ends a closed session in order. For a legacy peer that has sent data,
// it drains: the peer's retransmissions are acknowledged for some time.
func (c *Session) leave(now time.Duration) {
	if c.hs.Peer >= opening.Extended || c.kcp.Counts().SegmentsReceived == 0 {
		c.end(nil)
		return
	}
	c.closing.Drain(now, time.Duration(c.kcp.Sender().RTO())*time.Millisecond)
	c.traceState(trace.SessionDraining, nil)
	c.step.left.Ready |= Lingers
	c.wakeAll()
	c.compact()
}

// abort ends the session with err. It sends ABORT to an extended peer, unless both
// directions are over. If the peer's address is not validated, TIME-WAIT does that when
// a packet arrives, except for an endpoint that is closed.
func (c *Session) abort(err error) {
	if c.closing.Phase >= closing.Ended {
		return
	}
	done := false
	defer c.endIfUnwound(&done)
	closed := c.host.Stopped()
	if l := &c.hs; l.Peer >= opening.Extended && !c.over() && (closed || !c.hs.unvalidated.Load()) {
		abort := wire.Signal{Code: wire.Abort, SN: l.peerToken, TS: 0}
		if r := l.reasons; r != nil && r.abrupt && l.capabilities&CapReason != 0 {
			c.kcp.SignalQueue().Replace(wire.Signal{Code: wire.Close, SN: uint32(c.kcp.Position().End), TS: l.peerToken}, abort)
		} else {
			c.kcp.SignalQueue().Replace(abort)
		}
		if c.hs.securing && closed {
			c.abortTLS(abort)
		} else {
			c.kcp.SendSignals()
		}
	}
	c.end(err)
	done = true
}

// end ends the session with err. unlock removes it from the endpoint once the
// collected packets are written. Data that has arrived can still be read. After
// it, Read returns err, as Write does, if err is not nil.
func (c *Session) end(err error) {
	if c.closing.Phase >= closing.Ended {
		return
	}
	if (err == nil || err == ErrPeerClosed) && c.kcp.Receiver().AcksPending() {
		c.flush(c.host.Now()) // the ACKs cannot wait any longer
	}
	c.closing.End()
	c.closing.err = err
	c.limits = c.limitClock().End(c.hs.born, c.host.Now())
	if err != nil && c.undelivered() {
		c.closing.Lacks()
	}
	c.failMessages(c.reason(err))
	c.failStreams(c.reason(err))
	c.WakeStreams()
	if c.hs.Role == opening.Accepted || c.closing.Caller != closing.Uses || err == ErrOwnAddress { // the data is not for the application
		c.dropReceived()
		c.account()
	}
	c.traceState(trace.SessionEnded, err)
	c.kcp.SetTrace(nil)
}

// Retire gives up what an ended session holds, and returns what the endpoint keeps of
// it. It reports false if that was done.
func (c *Session) Retire() (end End, first bool) {
	if c.closing.Phase == closing.Retired {
		return End{}, false
	}
	c.closing.Retire()
	if c.hs.unvalidated.CompareAndSwap(true, false) {
		c.shared.Load.HalfOpen.Add(-1)
	}
	c.closeTLS()
	c.kcp.Receiver().DropAcks()
	c.kcp.SignalQueue().Drop()
	c.kcp.Compact()
	if c.path.validation != nil {
		c.path.validation.Drop()
	}
	c.dropDecoder()
	c.dropHeld()
	c.leaveTurn()
	c.account()
	c.accountWrites()
	c.wakeAll()
	c.step.left.WakeAt = 0
	return End{c.timeWaitState(), c.holdSocket()}, true
}

// timeWaitState returns the state to remember of a session that has ended.
func (c *Session) timeWaitState() TimeWait {
	l := &c.hs
	tw := TimeWait{Una: uint32(c.kcp.Position().Received), Protection: *c.in.protection.Load()}
	if t := c.tls; t != nil && t.ended != nil {
		tw.Protection, tw.Shaking = t.ended, true
	}
	if l.Peer >= opening.Extended {
		tw.Token, tw.Own = l.peerToken, l.token
		tw.Aborted = c.closing.err != nil && c.closing.err != ErrPeerClosed
		tw.Dropped = l.Role == opening.Accepted || c.hs.dropped
		tw.End = uint32(c.kcp.Position().End)
		if r := l.reasons; r != nil && l.capabilities&CapReason != 0 {
			tw.Reason = r.ours
		}
	}
	return tw
}

// dropDecoder releases the FEC decoder, and keeps its statistics.
func (c *Session) dropDecoder() {
	if c.in.decoder != nil {
		stats := c.in.decoder.Stats()
		c.in.decoder, c.rarely().decoded = nil, &stats
	}
}

// forget ends the session with err, and all calls of the application with net.ErrClosed.
func (c *Session) forget(err error) {
	c.stopCalls()
	c.dropReceived()
	c.account()
	c.abort(err)
}

// holdSocket returns how long the endpoint's socket must stay open after the session's
// end to answer the peer. The peer has announced its end, and our acknowledgement, our
// last packet, may have been lost, as may the reason of an abort. Or the peer does not
// know that the session was dropped: within the handshake, only an answer tells it.
func (c *Session) holdSocket() time.Duration {
	dropped, explained := c.hs.dropped && c.hs.Peer >= opening.Extended, c.hs.reasons != nil && c.hs.reasons.abrupt
	switch {
	case dropped && !c.hs.Confirmed:
		return closing.MaxHold // the round-trip time is not known
	case !dropped && !explained && c.closing.Read == closing.ReadOpen:
		return 0
	}
	if c.host.OwnSocket() {
		return closing.DialledHold
	}
	n := c.kcp.Counts()
	return closing.AnswerFor(time.Duration(c.kcp.Sender().RTO())*time.Millisecond, n.Retransmits()+n.Duplicates > 0)
}

// progress advances the session's state after input, an application's call or a timer.
func (c *Session) progress(now time.Duration) {
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
		c.kcp.DiscardSend()
		c.step.left.Ready |= Writers
	}
	c.advanceClose(now)
	if c.closing.Phase == closing.Lingering {
		c.closing.Progress(now, c.kcp.Position().Acked, c.confirmingMTU(now))
	}
	if c.hs.kindAwaited && c.hs.Peer != opening.Unknown {
		c.hs.kindAwaited = false
		c.step.left.Ready |= Writers
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
func (c *Session) over() bool {
	with := c.closingSession()
	return c.closing.Over(&with)
}

// allReceived reports whether all of the peer's data up to its FIN or CLOSE has
// arrived.
func (c *Session) allReceived() bool { return c.closing.AllReceived(c.kcp.Position().Received) }

// takeFin takes the end of the peer's data from a FIN or CLOSE. It reports
// false if that end is impossible.
func (c *Session) takeFin(s wire.Signal) bool {
	with := c.closingSession()
	return c.closing.TakeFinal(machine.Seq(s.SN), s.Code == wire.Close, &with)
}

// takeReset takes a RESET, our stateless reset (RFC 9000 §10.3). It ends the session if s
// echoes a waiting request's arguments, which only the peer and the path can know.
func (c *Session) takeReset(s wire.Signal) {
	l := &c.hs
	for _, k := range opening.Kinds {
		r := l.Of(k)
		if k == opening.Ping || !l.Asked(k) || r.Signal.SN != s.SN || r.Signal.TS != s.TS {
			continue
		}
		if k == opening.Hello && (l.Role == opening.Quiet || c.rare.simultaneous() && l.capabilities&CapTLS == 0) {
			continue // the peer may come later
		}
		c.forgotten(k)
	}
	if c.asked.Waits(s.SN, s.TS) {
		c.forgotten(opening.Ping)
	}
}

// forgotten ends the session after the batch of input, as the peer does not know
// it any more. k is the request that has shown it.
func (c *Session) forgotten(k opening.Kind) {
	l := &c.hs
	c.closing.ending = ErrReset
	l.peerToken = 0 // the peer does not know the session: TIME-WAIT answers nothing
	if k == opening.Hello {
		c.closing.ending = ErrRefused
		if l.capabilities&CapTLS != 0 {
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
func (c *Session) closeForShutdown() {
	if c.closing.Linger <= 0 {
		c.closing.Linger = DefaultLinger
	}
	switch {
	case c.closing.Phase >= closing.Ended:
		c.stopCalls()
	case c.closing.Caller == closing.Uses:
		c.stopCalls()
		c.startClose(false, false)
	case c.closing.Await(c.host.Now()):
		c.schedule(c.host.Now())
	}
}

// ShutResult is how a session has ended in Shutdown.
type ShutResult uint8

const (
	ShutWaits ShutResult = iota // it has not
	shutDelivered
	ShutUndelivered
	ShutCut // Shutdown has not waited for it
)

// Shut returns how the session has ended in Shutdown, or that only the answer to CLOSE is
// missing. With cut it ends now.
func (c *Session) Shut(cut bool) ShutResult {
	switch {
	case c.shutting() && !cut:
		return ShutWaits
	case c.closing.Undelivered():
		return ShutUndelivered
	case c.shutting() && c.closing.Phase != closing.Draining:
		c.forget(net.ErrClosed)
		return ShutCut
	}
	return shutDelivered
}

// shutting reports whether Shutdown has to wait for the session.
func (c *Session) shutting() bool {
	given := c.closing.Caller == closing.Leaves && c.closing.Phase == closing.Lingering && c.kcp.WaitSend() == 0
	return c.closing.Phase != closing.Retired && !given
}

// Cause is what ends a session besides its application, its peer and its timers.
type Cause uint8

const (
	CauseFailed    Cause = iota // err
	CauseDiscarded              // no application has it; err says why
	CauseEvicted                // it makes room, unless its peer's address was validated meanwhile
	CauseLate                   // a simultaneous open was decided; one that tells its peer of a failed TLS handshake goes on
	CauseReset                  // the peer's endpoint knows nothing of it any more
	CauseRefused                // no socket is open at the peer's address
	CauseDrained                // the endpoint needs the socket; it was there to acknowledge what a legacy peer repeats
	CauseShutdown               // Shutdown was called: it is closed
)

// EndFor ends the session for a cause, as far as that concerns it.
func (c *Session) EndFor(why Cause, err error) {
	switch why {
	case CauseFailed:
		c.abort(err)
	case CauseDiscarded:
		c.hs.dropped = true
		c.forget(err)
	case CauseEvicted:
		if c.hs.unvalidated.Load() || c.hs.Role == opening.Accepted {
			c.abort(ErrReset)
		}
	case CauseLate:
		if x := c.tlsHandshake(); x == nil || !x.Failed {
			c.EndFor(CauseDiscarded, ErrRefused)
		}
	case CauseReset:
		if c.closing.Phase < closing.Ended {
			c.forgotten(opening.Ping)
			c.finishStep(c.host.Now())
		}
	case CauseRefused:
		c.unreachable()
	case CauseDrained:
		if c.closing.Phase == closing.Draining {
			c.end(nil)
		}
	case CauseShutdown:
		c.closeForShutdown()
	}
}

// unreachable handles ECONNREFUSED: no socket is open at the peer's address. It ends a
// session that waits for a first answer, or only for the answer to CLOSE.
func (c *Session) unreachable() {
	switch {
	case !c.hs.Reached && c.hs.Unanswered&opening.Hello != 0 && c.hs.Role != opening.Quiet && !c.rare.simultaneous():
		c.end(ErrRefused)
	case c.closing.Phase == closing.Lingering && c.kcp.WaitSend() == 0:
		c.end(nil)
	}
}
