package kcp

import (
	"context"
	"net"
	"sync/atomic"
	"time"
)

// handshakeState is what the two ends know of each other, and the signals that
// wait for an answer. WIRE.md §5.1 and §5.2 have the diagrams. Conn.mu guards
// it, but for the atomic flags. Times are since the endpoint's epoch.
type handshakeState struct {
	unvalidated atomic.Bool // the peer's address is not validated (RFC 9000 §8)
	active      atomic.Bool // a packet arrived since the list of half-open sessions was looked at; set only if unvalidated
	greeted     atomic.Bool // the peer is extended: kind is peerExtended

	kind         peerKind
	dialled      bool          // by this end; false: accepted
	quiet        bool          // dialled with DialOptions.Quiet
	dialling     bool          // Dial waits, and its time-out replaces all others
	offered      bool          // to Accept; true also if dialled
	openedFEC    bool          // the peer's first packet had an FEC header
	reached      bool          // a valid packet has arrived from the peer
	welcomed     bool          // the peer's WELCOME has arrived, which echoes our token
	confirmed    bool          // accepted session: the peer has shown our token
	token        uint32        // ours, which the peer's signals must show; 0: not drawn yet
	peerToken    uint32        // the peer's, which our signals must show; 0: not known
	version      uint32        // of the peer's signals; 0: not known
	capabilities uint32        // of the peer, from its INFO: capPMTU, capReason
	cookie       signal        // goes with our HELLO; code 0: none
	peerFinal    seq           // if peerFin: the peer sends no data from here on
	helloAt      time.Duration // when HELLO was last sent
	born         time.Duration // when the session began

	hello, confirm, finish, ping request

	reasons *closeReasons // why the ends have closed the session; nil: neither has said so

	finSignal  signalCode // sigFin or sigClose, once the application has closed; 0 before
	finished   bool       // the peer has answered finSignal
	halfClosed bool       // finSignal was sigFin at first
	finAcked   bool       // the peer has answered that sigFin
	peerFin    bool       // the peer has sent FIN or CLOSE
	peerClosed bool       // it was CLOSE: the peer reads nothing more
	cookies    uint8      // cookies that were answered with an immediate HELLO
	securing   bool       // with TLS: the machine's packets cannot be sent, as their keys are not agreed on
}

// peerKind tells whether the peer supports signals.
type peerKind uint8

const (
	peerUnknown  peerKind = iota
	peerLegacy            // does not, such as kcp-go; a signal of the peer puts that right
	peerExtended          // does: an endpoint of this package
)

// The version of the signals, and how often they are sent.
const (
	signalVersion = 2 // 1 did not seal the packets of a TLS handshake in the clear

	// helloTries is how many HELLOs without a WELCOME show a legacy peer, if
	// other packets arrive from it.
	helloTries = 8
	// legacyAnswers is how many plain window updates show the same sooner. A
	// legacy peer takes HELLO for a window probe, and answers with one.
	legacyAnswers = 2

	// firstHelloWait is the time from the first HELLO to the second. Other
	// requests wait for one RTO, within these bounds; all waits then double.
	firstHelloWait = 200 * time.Millisecond
	minRequestWait = 50 * time.Millisecond
	maxRequestWait = 2 * time.Second
	// maxHelloWait is the most between two of the first eagerHellos HELLOs,
	// while nothing has arrived: a short outage must not make Dial fail.
	maxHelloWait = 500 * time.Millisecond
	eagerHellos  = 20
	// minHelloWait is the least time between two HELLOs. Without it, forged
	// cookies would cause more to be sent than has arrived.
	minHelloWait = 50 * time.Millisecond
	// maxCookies is how many cookies are answered at once nevertheless.
	maxCookies = 4
)

// waiting reports whether a request waits for the peer's answer. HELLO counts
// until anything arrives.
func (l *handshakeState) waiting() bool {
	return l.hello.active && !l.reached || l.confirm.active || l.finish.active || l.ping.active
}

// requestWait returns how long to wait for an answer before a request is
// repeated.
func (c *session) requestWait() time.Duration {
	rto := time.Duration(c.kcp.sender().rto()) * time.Millisecond
	return max(minRequestWait, min(rto, maxRequestWait))
}

// startHandshake begins the handshake of a dialled session.
func (c *session) startHandshake(now time.Duration) {
	if c.beginOpening(now) {
		c.kick(now)
	}
}

// beginOpening starts a HELLO and reports true, or with TLS begins the handshake.
func (c *session) beginOpening(now time.Duration) bool {
	l := &c.hs
	l.token = c.shared.env.Token()
	if l.securing {
		c.dialTLS()
		return false
	}
	l.hello.start(signal{sigHello, 0, l.token}, now, firstHelloWait)
	return true
}

// silent reports whether a session that was dialled quietly has yet to send its
// HELLO. It need not if the peer's HELLO came first.
func (l *handshakeState) silent() bool {
	return l.quiet && l.hello.signal.code == 0 && l.kind != peerExtended
}

// breakSilence queues HELLO, to leave together with the first data. With TLS it
// begins the handshake, and the data follows that.
func (c *session) breakSilence(now time.Duration) {
	c.hs.born = now // the peer knows of nothing before
	if c.beginOpening(now) {
		c.setClock(now)
		c.sendDueRequests(now)
	}
}

// keepQuiet starts the timers of a session that was dialled
// quietly.
func (c *session) keepQuiet() {
	c.hs.quiet = true
	c.schedule(c.host.now())
}

// kick sends the signals that a call of the application has just made due.
func (c *session) kick(now time.Duration) {
	done := false
	defer c.endIfUnwound(&done)
	c.setClock(now)
	c.sendDueSignals(now)
	c.finishStep(now)
	done = true
}

// queueHello queues HELLO for the next flush, with the cookie, if any, and
// INFO.
func (c *session) queueHello() {
	l, k := &c.hs, c.kcp
	k.signalQueue().add(l.hello.signal)
	if l.cookie.code != 0 {
		k.signalQueue().add(l.cookie)
	}
	k.signalQueue().add(c.infoSignal())
}

// PeerInfo is what a session knows of its peer.
type PeerInfo struct {
	// Known reports whether the peer's packets have shown its kind. Until then the other
	// fields are zero.
	Known bool
	// Legacy reports whether the peer is without this package's signals, such as kcp-go
	// or the C reference. A session may take an extended peer for a legacy one until its
	// first signal arrives.
	Legacy bool
	// Version is the version of the peer's signals, now 2; 0 for a legacy peer, and
	// before INFO has arrived (WIRE.md §5).
	Version int
}

// Peer returns what the session knows of its peer now.
func (c *Conn) Peer() PeerInfo {
	c.mu.Lock()
	defer c.unlock()
	l := &c.hs
	return PeerInfo{Known: l.kind != peerUnknown, Legacy: l.kind == peerLegacy, Version: int(min(l.version, maxInt32))}
}

// connect locks c.mu, starts the handshake, and waits for the peer's answer as
// Endpoint.Dial documents, which was called at a time since the epoch. If it
// returns an error, the session has ended. ErrReset means that the peer has
// dropped it.
func (c *Conn) connect(ctx context.Context, called time.Duration) (err error) {
	c.startTrace(SessionDialled)
	begun, limit := false, c.ep.config.DialTimeout
	_ = c.await(blocking{ctx: ctx}, func() (pause, error) {
		if !begun {
			begun = true
			c.hs.dialling = limit > 0
			c.startHandshake(c.ep.now())
		}
		// A session that has failed may have to tell the peer why, which the caller's
		// closing of the endpoint must not forestall.
		late := c.ep.now() >= called+limit
		switch {
		case limit == 0:
		case !c.hs.reached && !c.closing.retired && !late && ctx.Err() == nil:
			return pause{on: &c.io.canWrite, until: called + limit}, nil
		default:
			err = c.connected(ctx, called)
		}
		return pause{}, nil
	}, nil)
	return err
}

// connected is what connect does in the end, with c.mu held.
func (c *Conn) connected(ctx context.Context, called time.Duration) error {
	c.hs.dialling = false
	c.schedule(c.ep.now())
	if c.hs.reached && (c.closing.err == nil || c.closing.err == ErrPeerClosed) {
		return nil // there may be data from before the peer closed
	}
	err := c.closing.err
	if err == nil && c.closing.closed {
		err = net.ErrClosed // by Shutdown
	}
	if err == nil {
		if err = ctx.Err(); err == nil || err == context.DeadlineExceeded {
			err = &NoAnswerError{Waited: c.ep.now() - called, Socket: c.ep.socketErrorSince(called)}
		}
	}
	c.forget(err)
	return err
}

// addressValidated marks the peer's address as validated (RFC 9000 §8), and
// lifts the anti-amplification limit (RFC 9000 §8.1). It ends the session after
// the batch if the peer's network exceeds Config.MaxSessionsPerAddress.
func (c *session) addressValidated() {
	if !c.hs.unvalidated.CompareAndSwap(true, false) {
		return
	}
	c.shared.load.halfOpen.Add(-1)
	c.kcp.validateAddress()
	c.traceState(SessionEstablished, nil)
	c.step.ready |= admitted
	if c.hs.kind == peerUnknown {
		c.hs.kind = peerLegacy // a HELLO may still correct that
	}
	if !c.host.validated() {
		c.closing.ending = ErrReset
	}
}

// offer puts an accepted session into the listener's backlog, once. It reports
// false if there is no room; without a listener, it also ends the session after
// the batch.
func (c *session) offer() bool {
	if c.hs.offered {
		return true
	}
	ok, none := c.host.offer()
	if none {
		c.closing.ending, c.closing.dropped = ErrRefused, true
	}
	c.hs.offered = ok
	return ok
}

// wasOffered reports whether the session was offered to Accept,
// or dialled.
func (c *session) wasOffered() bool {
	return c.hs.offered
}

// opening reports whether the session may still be offered to Accept.
func (c *session) opening() bool {
	return !c.hs.offered && c.closing.state != stateEnded
}

// begin locks c.mu and starts the timers of an accepted session. If offered, it
// puts the session into l's backlog. It reports false if the session has ended,
// be it because the backlog is full.
func (c *Conn) begin(now time.Duration, l *Listener, offered bool) bool {
	c.startTrace(SessionAccepted)
	c.mu.Lock()
	defer c.unlock()
	if c.closing.state == stateEnded {
		return false
	}
	if offered {
		c.hs.offered = l.offer(c, !c.hs.unvalidated.Load())
		if !c.hs.offered && c.hs.kind != peerExtended { // an extended peer repeats CONFIRM
			c.ep.counters.dropBacklog.Add(1)
			c.forget(ErrRefused)
			return false
		}
	}
	c.schedule(now)
	return true
}
