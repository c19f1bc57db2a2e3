package kcp

import (
	"context"
	"sync/atomic"
	"time"
)

// handshakeState is what the two ends know of each other, and the signals that
// wait for an answer. WIRE.md §5 has the state diagrams.
type handshakeState struct {
	unvalidated atomic.Bool // the peer's address is not validated (RFC 9000 §8); any lock, or none
	active      atomic.Bool // something came since Endpoint.oldestHalfOpenLocked looked; any lock, or none
	greeted     atomic.Bool // the peer knows signals; any lock, or none

	kind         peerKind
	dialled      bool   // by us; accepted otherwise
	dialling     bool   // Dial waits, and its time is what counts
	offered      bool   // to Accept, or dialled
	openedFEC    bool   // the peer's first packet had an FEC header
	reached      bool   // something has come from the peer
	welcomed     bool   // and the answer to our hello, which has our token
	confirmed    bool   // the peer of an accepted session has shown our token
	token        uint32 // what the peer's signals must show; 0: not drawn
	peerToken    uint32 // what ours must show; 0: not known
	version      uint32 // the peer's; 0: not known
	capabilities uint32
	cookie       signal        // to go with the hello; of no code while there is none
	helloAt      time.Duration // when the hello was sent last, since the epoch
	born         time.Duration // when the session began, since the epoch

	hello, confirm, finish, ping request

	closing    signalCode // sigFin or sigClose, once we have nothing more to say; 0 before
	finished   bool       // the peer has acknowledged that
	halfClosed bool       // closing was sigFin at first,
	finAcked   bool       // and the peer has acknowledged that at least
	peerFin    bool       // the peer says nothing from peerFinal on,
	peerClosed bool       // and reads nothing any more
	cookies    uint8      // that had the hello sent again at once
	peerFinal  seq
}

// peerKind is what sort of endpoint the peer is.
type peerKind uint8

const (
	peerUnknown  peerKind = iota
	peerLegacy            // does not know signals
	peerExtended          // does
)

// Version of the signals, and their times.
const (
	signalVersion = 1

	// helloTries is how often a peer that answers, but not to the hello, is
	// asked before it is taken for one that knows no signals.
	helloTries = 8
	// legacyAnswers is how many plain window updates show the same sooner:
	// they are what such a peer answers the hello with.
	legacyAnswers = 2

	firstHelloWait = 200 * time.Millisecond
	minRequestWait = 50 * time.Millisecond
	maxRequestWait = 2 * time.Second
	// maxHelloWait is the most between two of the first eagerHellos hellos, while
	// nothing has come: an outage at the beginning is not to make Dial fail.
	maxHelloWait = 500 * time.Millisecond
	eagerHellos  = 20
	// minHelloWait is the least time between two hellos; forged cookies would have
	// more sent than has come.
	minHelloWait = 50 * time.Millisecond
	// maxCookies is how many cookies are answered at once all the same.
	maxCookies = 4
	// maxSignals is how many signals wait at the most for the next flush, so
	// that a batch of questions costs what a batch of data does.
	maxSignals = 64

	// unvalidatedPingWait is the distance of pings to a peer that may never have sent
	// anything: somebody else may have, in its name.
	unvalidatedPingWait = 10 * time.Second

	// probeAfter is the silence, while something is unacknowledged, after
	// which the peer is asked whether it still knows the session.
	probeAfter = time.Second
	// restartDetectAfter is for how long a peer that knows no signals may acknowledge
	// less than before, as packets that were overtaken do, before it is taken
	// for one that was restarted.
	restartDetectAfter = 5 * time.Second
	// restartAnswers is how many answers of such a peer have to say so, too.
	restartAnswers = 2
	// pathCheckAfter is the silence after data of the peer, in a session that may
	// move, after which it is asked once whether it still reaches us.
	pathCheckAfter = 2 * time.Second
)

// waiting reports whether the peer owes an answer.
func (l *handshakeState) waiting() bool {
	return l.hello.active && !l.reached || l.confirm.active || l.finish.active || l.ping.active
}

// requestWait returns how long to wait for an answer before asking again.
func (c *Conn) requestWait() time.Duration {
	rto := time.Duration(c.kcp.rtoMillis()) * time.Millisecond
	return max(minRequestWait, min(rto, maxRequestWait))
}

// sayHello begins a session that we have dialled.
func (c *Conn) sayHello(now time.Duration) {
	l := &c.hs
	l.token = randomToken()
	l.hello.start(signal{sigHello, 0, l.token}, now, firstHelloWait)
	c.kick(now)
}

// kick sends what the application has just given reason to say.
func (c *Conn) kick(now time.Duration) {
	c.setClock(now)
	c.sendDueSignals(now)
	c.finishStep(now)
	c.writePackets()
}

// randomToken returns a number that nobody can guess, and not 0.
func randomToken() uint32 {
	for {
		if t := randomConv(); t != 0 {
			return t
		}
	}
}

// queueHello puts the hello in front of what leaves next.
func (c *Conn) queueHello() {
	l, k := &c.hs, c.kcp
	k.queueSignals(l.hello.signal)
	if l.cookie.code != 0 {
		k.queueSignals(l.cookie)
	}
	k.queueSignals(infoSignal())
}

// PeerInfo is what is known of the other end of a session.
type PeerInfo struct {
	// Known is true once the peer has answered, or asked, in a way that shows
	// what it is.
	Known bool
	// Legacy is true for a peer without this package's signals, such as kcp-go
	// or the C reference: it learns nothing of Close, CloseWrite and Abort.
	Legacy bool
	// Version is that of the peer's signals; 0 for a legacy peer.
	Version int
}

// Peer returns what is known of the other end.
func (c *Conn) Peer() PeerInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &c.hs
	return PeerInfo{Known: l.kind != peerUnknown, Legacy: l.kind == peerLegacy, Version: int(l.version)}
}

// connect asks the peer to answer, and waits until it does as Endpoint.Dial
// says. When that fails the session is over.
func (c *Conn) connect(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.ep.now()
	limit := c.ep.config.DialTimeout
	c.hs.dialling = limit > 0
	c.sayHello(now)
	if limit == 0 {
		return nil
	}
	timeout, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer context.AfterFunc(timeout, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.io.canWrite.Broadcast()
	})()
	for !c.hs.reached && c.closing.err == nil && timeout.Err() == nil {
		c.io.canWrite.Wait()
	}
	c.hs.dialling = false
	c.schedule(c.ep.now())
	if c.hs.reached && (c.closing.err == nil || c.closing.err == ErrPeerClosed) {
		return nil // it may have said something before it closed
	}
	err := c.closing.err
	if err == nil {
		if err = ctx.Err(); err == nil || err == context.DeadlineExceeded {
			err = &NoAnswerError{Waited: c.ep.now() - now}
		}
	}
	c.forget(err)
	return err
}

// addressValidated notes that the peer gets what is sent to its address: the address is
// validated, and the anti-amplification limit is lifted.
func (c *Conn) addressValidated() {
	if !c.hs.unvalidated.CompareAndSwap(true, false) {
		return
	}
	c.ep.load.halfOpen.Add(-1)
	c.kcp.validateAddress()
	if c.hs.kind == peerUnknown {
		c.hs.kind = peerLegacy // may yet be put right by a hello
	}
	if !c.ep.countValidated(c) {
		c.closing.ending = ErrReset
	}
}

// offer hands an accepted session to Accept, once. It is false where there is
// no room.
func (c *Conn) offer() bool {
	if c.hs.offered {
		return true
	}
	c.ep.mu.RLock()
	l := c.ep.listener
	c.ep.mu.RUnlock()
	if l == nil {
		c.closing.ending = ErrRefused
		return false
	}
	c.hs.offered = l.offer(c, true)
	return c.hs.offered
}

// wasOffered reports whether the session was offered to Accept, or dialled.
func (c *Conn) wasOffered() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hs.offered
}

// begin lets an accepted session live, and hands it to l if offered. It reports
// false if the session has ended, because l has no room for it or otherwise.
func (c *Conn) begin(now time.Duration, l *Listener, offered bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing.state == stateEnded {
		return false
	}
	if offered {
		c.hs.offered = l.offer(c, !c.hs.unvalidated.Load())
		if !c.hs.offered && c.hs.kind != peerExtended { // who is ours asks again
			c.ep.counters.dropBacklog.Add(1)
			c.forget(ErrRefused)
			return false
		}
	}
	c.schedule(now)
	return true
}
