package kcp

import (
	"errors"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// Close closes the session in both directions. Calls in progress return
// net.ErrClosed, and what has arrived but was not read is dropped. Close waits
// until the peer has acknowledged all that was written and, if it is an endpoint
// of this package, that there is no more: it then reads io.EOF after the last
// byte. If nothing more is acknowledged for Config.Linger, or not all within
// Config.MaxLinger, the session is broken off and Close returns ErrNotDelivered
// or a *PeerLostError. If the session had ended before, and neither Read nor
// Write has said so, Close does, if something that was written is lost.
//
// Close returns no error if the peer has acknowledged all that was written. If
// the peer then does not answer that there is no more, it is told in the
// background, after Close has waited for Config.Linger; where the system reports
// that nobody listens there any more, Close does not wait.
//
// ErrNotDelivered also means that the peer has closed the session without having
// taken all that was written, be it the last word of a protocol: the alert that
// crypto/tls sends before it closes comes too late for a peer which has closed.
// TCP does not report that.
//
// A peer that knows no signals, such as kcp-go, is told nothing. For it the
// session answers repetitions for some more seconds in the background.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing.closed {
		return c.opError("close", net.ErrClosed)
	}
	c.stopCalls()
	if c.closing.state == stateEnded {
		c.dropReceived()
		c.kcp.Compact()
		c.account()
		switch {
		case c.closing.undelivered && c.hs.peerClosed:
			return c.opError("close", ErrNotDelivered)
		case c.closing.undelivered && !c.io.errReported && !errors.Is(c.closing.err, net.ErrClosed):
			return c.opError("close", c.closing.err)
		}
		return nil
	}
	now := c.ep.now()
	l := &c.hs
	if !c.over() {
		l.finAcked = l.finished
		l.closing, l.finished, l.finish.active = sigClose, false, false
	}
	c.dropReceived()
	c.closing.state = stateLingering
	c.closing.lingerFrom = c.kcp.sendUna()
	c.closing.background = c.closing.linger <= 0
	c.closing.closeBy = now + max(c.ep.config.MaxLinger, c.closing.linger)
	c.wait(now)
	c.kick(now)
	for !c.closing.background && c.closing.state == stateLingering {
		c.io.canWrite.Wait()
	}
	switch {
	case !c.closing.undelivered:
		return nil
	case c.closing.state == stateEnded && c.closing.err != nil && c.closing.err != ErrPeerClosed:
		return c.opError("close", c.closing.err)
	}
	return c.opError("close", ErrNotDelivered)
}

// wait has a closed session go on for as long as it may without progress.
func (c *Conn) wait(now time.Duration) {
	patience := c.closing.linger
	if c.closing.background {
		patience = backgroundLinger
	}
	c.closing.endAt = min(now+patience, c.closing.closeBy)
}

// giveUp ends a closed session that has not come further for long enough. If the
// peer has everything but the word that there is no more, Close returns, and the
// session goes on to say it.
func (c *Conn) giveUp(now time.Duration) {
	if c.kcp.WaitSend() == 0 && !c.closing.background && now < c.closing.closeBy {
		c.closing.background = true
		c.wait(now)
		c.io.canWrite.Broadcast()
		return
	}
	c.abort(ErrNotDelivered)
}

// backgroundLinger is how long a session that was closed without waiting tries
// to deliver what was written.
const backgroundLinger = 30 * time.Second

// dropReceived drops what nobody is going to read, and takes no more.
func (c *Conn) dropReceived() {
	c.kcp.closeReceive()
	if q := c.in.datagrams; q != nil {
		q.waiting, q.bytes = nil, 0
	}
}

// stopCalls makes all calls of the application return net.ErrClosed.
func (c *Conn) stopCalls() {
	c.closing.closed = true
	c.io.readDeadline.set(time.Time{}, &c.mu, &c.io.canRead)
	c.io.writeDeadline.set(time.Time{}, &c.mu, &c.io.canWrite)
	c.wakeAll()
}

// CloseWrite tells the peer that nothing more will be written: it reads io.EOF
// after the last byte. Reading goes on. It does not wait for the peer to know
// that, but does until it is known whether the peer can be told: with a peer of
// this package that is known from the first answer on.
//
// Errors are net.ErrClosed after Close or CloseWrite, ErrLegacyPeer for a peer
// that cannot be told, to which Write goes on to work, os.ErrDeadlineExceeded
// when the write deadline has passed before that is known, and how the session
// has ended.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &c.hs
	if err := c.waitKind(); err != nil {
		return c.opError("close", err)
	}
	l.closing, l.halfClosed = sigFin, true
	c.io.canWrite.Broadcast()
	now := c.ep.now()
	c.kick(now)
	return nil
}

// waitKind waits until it is known that the peer can be told of CloseWrite, and
// returns why it cannot.
func (c *Conn) waitKind() error {
	l := &c.hs
	var timer *time.Timer
	for {
		now := c.ep.now()
		switch {
		case c.closing.closed || l.closing != 0:
			return net.ErrClosed
		case l.peerClosed:
			return ErrPeerClosed
		case c.closing.err != nil:
			return c.closing.err
		case l.kind == peerExtended:
			return nil
		case l.kind == peerLegacy, !c.hs.dialled && now-c.hs.born >= helloAfterData:
			return ErrLegacyPeer
		case c.io.writeDeadline.expired:
			return os.ErrDeadlineExceeded
		}
		if timer == nil && !c.hs.dialled {
			timer = time.AfterFunc(c.hs.born+helloAfterData-now, func() {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.io.canWrite.Broadcast()
			})
			defer timer.Stop()
		}
		c.closing.asksKind = true
		c.io.canWrite.Wait()
	}
}

// helloAfterData is for how long CloseWrite expects a hello after the data that
// has opened a session: one that was sent before it, and lost, comes again.
const helloAfterData = firstHelloWait + 100*time.Millisecond

// Abort ends the session at once. What was written and is not yet delivered is
// lost, and the peer, if it is an endpoint of this package, gets ErrReset. It
// returns net.ErrClosed after Close or Abort.
func (c *Conn) Abort() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing.closed && c.closing.state == stateEnded {
		return c.opError("close", net.ErrClosed)
	}
	c.forget(net.ErrClosed)
	return nil
}

// SetLinger sets how long Close waits for the next acknowledgement, in place of
// Config.Linger. With d <= 0 Close does not wait; delivery then goes on in the
// background, until nothing is acknowledged for 30 seconds.
func (c *Conn) SetLinger(d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing.closed {
		return c.opError("set", net.ErrClosed)
	}
	c.closing.linger = d
	return nil
}

// leave ends a closed session with which everything is well.
func (c *Conn) leave(now time.Duration) {
	if c.hs.kind == peerExtended || c.kcp.counts().SegmentsReceived == 0 {
		c.end(nil)
		return
	}
	c.closing.state = stateDraining
	rto := time.Duration(c.kcp.rtoMillis()) * time.Millisecond
	c.closing.endAt = now + max(drainTime, min(drainRTOs*rto, drainRTOs*drainTime))
	c.wakeAll()
	c.compact()
}

// abort ends the session because of err, and tells the peer if it can be told.
func (c *Conn) abort(err error) {
	if c.closing.state == stateEnded {
		return
	}
	if l := &c.hs; l.kind == peerExtended && !c.over() && !c.hs.unvalidated.Load() {
		c.kcp.replaceSignals(signal{sigAbort, l.peerToken, 0})
		c.kcp.sendSignals()
	}
	c.end(err)
}

// end takes the session out of the endpoint, after what it still has to send.
// What has arrived can still be read; then, and on Write, err is returned, if
// it is not nil.
func (c *Conn) end(err error) {
	if c.closing.state == stateEnded {
		return
	}
	if (err == nil || err == ErrPeerClosed) && c.kcp.acksPending() {
		c.flush(c.ep.now()) // they cannot wait any longer
	}
	c.closing.state = stateEnded
	c.closing.err = err
	c.closing.undelivered = c.closing.undelivered || err != nil && c.kcp.WaitSend() > 0
	if !c.hs.offered { // so nobody can read it
		c.dropReceived()
		c.account()
	}
	c.writePackets()
	if !c.outgoing.sending { // else whoever is sending does it
		c.retire()
	}
}

// retire takes the session, which has ended, out of the endpoint.
func (c *Conn) retire() {
	if !c.closing.retired {
		c.closing.retired = true
		if c.hs.unvalidated.CompareAndSwap(true, false) {
			c.ep.load.halfOpen.Add(-1)
		}
		c.kcp.dropPending()
		c.kcp.Compact()
		if c.in.decoder != nil {
			stats := c.in.decoder.Stats()
			c.in.decoder, c.in.decoded = nil, &stats
		}
		c.account()
		c.ep.remove(c, c.timeWaitState())
		c.wakeAll() // who is told of the end finds nothing left of the session
	}
}

// discard ends a session that no application has, because of err.
func (c *Conn) discard(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(err)
}

// forget is discard with the lock held.
func (c *Conn) forget(err error) {
	c.stopCalls()
	c.dropReceived()
	c.account()
	c.abort(err)
}

// fail ends the session because of err.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.abort(err)
}

// holdSocket returns for how long the peer may have to be answered after the
// session's end: it has told us something, and our acknowledgement, the last
// thing we sent, may have been lost.
func (c *Conn) holdSocket() time.Duration {
	if !c.hs.peerFin {
		return 0
	}
	if c.ep.socket.disposable && heldSockets.Load() < maxHeldSockets {
		return dialledHold
	}
	hold := minHold
	if n := c.kcp.counts(); n.Retransmits()+n.Duplicates > 0 {
		hold = lossyHold
	}
	return max(hold, min(holdRTOs*time.Duration(c.kcp.rtoMillis())*time.Millisecond, maxHold))
}

// heldSockets counts the sockets that are kept open for peers after the end of
// their sessions.
var heldSockets atomic.Int32

// Bounds of holdSocket. On a path that has shown that it loses packets the peer
// may have to ask several times.
const (
	// dialledHold is for a socket whose port nobody asked for, and nobody misses:
	// a peer of default settings asks for Linger, and 2 s pass between questions.
	// Of no more than maxHeldSockets, so that a program which dials a thousand
	// times a second does not run out of descriptors; the others have the times
	// of listening sockets.
	dialledHold    = 7 * time.Second
	maxHeldSockets = 256

	minHold   = 200 * time.Millisecond
	lossyHold = 1500 * time.Millisecond
	maxHold   = 3 * time.Second
	holdRTOs  = 4
)

// progress goes on in the life of the session after a batch of input, or
// whatever else may have been waited for.
func (c *Conn) progress(now time.Duration) {
	l := &c.hs
	if c.closing.state == stateEnded || c.closing.state == stateDraining {
		return
	}
	if l.peerClosed && c.kcp.WaitSend() > 0 {
		// The una that came with the close covers all the peer ever took.
		c.closing.undelivered = true
		c.kcp.discardSend()
		c.io.canWrite.Broadcast()
	}
	if c.closing.state == stateLingering && (c.kcp.sendUna() != c.closing.lingerFrom || c.confirmingMTU(now)) {
		c.closing.lingerFrom = c.kcp.sendUna()
		c.wait(now)
	}
	if c.closing.asksKind && l.kind != peerUnknown {
		c.closing.asksKind = false
		c.io.canWrite.Broadcast()
	}
	switch {
	case c.closing.ending != nil:
		c.end(c.closing.ending)
	case l.peerClosed && c.heardOut():
		// We have all of it, and nothing that we could say matters to the peer.
		c.end(ErrPeerClosed)
	case c.closing.state == stateLingering && c.delivered():
		c.leave(now)
	case c.closing.state == stateLingering && now >= c.closing.endAt:
		c.giveUp(now)
	}
}

// delivered reports whether a closed session has nothing left to do for the
// application.
func (c *Conn) delivered() bool {
	l := &c.hs
	if c.kcp.WaitSend() > 0 {
		return false
	}
	switch l.kind {
	case peerExtended:
		// A peer that has nothing more to say need not know that we read no more.
		return l.finished || l.finAcked && c.heardOut()
	case peerUnknown:
		// Nothing was ever said to it, or it may yet prove to be one of ours.
		return !l.hello.active || !l.reached && c.kcp.sendUna() == 0
	}
	return true
}

// over reports whether both directions have come to their ends, so that there
// is nothing left that the peer could do.
func (c *Conn) over() bool {
	l := &c.hs
	return c.heardOut() &&
		(l.peerClosed || l.finished && c.kcp.WaitSend() == 0)
}

// heardOut reports whether all that the peer had to say has come.
func (c *Conn) heardOut() bool { return c.hs.peerFin && !c.kcp.recvNext().before(c.hs.peerFinal) }

// takeFin notes where the peer's data ends. It is false where that cannot be:
// before what has come, or so far ahead that no window ever gets there.
func (c *Conn) takeFin(s signal) bool {
	l, next, final := &c.hs, c.kcp.recvNext(), seq(s.sn)
	if l.peerFin && l.peerFinal != final || !final.within(next, next+1<<31) {
		return false
	}
	l.peerFin, l.peerFinal = true, final
	l.peerClosed = l.peerClosed || s.code == sigClose
	return true
}

// takeReset ends the session where s names a request of ours that waits, which
// only the peer, or somebody on the path, can know.
func (c *Conn) takeReset(s signal) {
	l := &c.hs
	for _, r := range []*request{&l.hello, &l.confirm, &l.finish, &l.ping} {
		if !r.active || r.tries == 0 || r.signal.sn != s.sn || r.signal.ts != s.ts {
			continue
		}
		c.closing.ending = ErrReset
		l.peerToken = 0 // nobody is left to be told anything
		if r == &l.hello {
			c.closing.ending = ErrRefused
		}
		if r == &l.finish && c.kcp.WaitSend() == 0 {
			// It had everything and has forgotten us since.
			c.closing.ending, l.finished, l.finish.active = nil, true, false
		}
	}
}
