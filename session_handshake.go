package kcp

import (
	"net"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/trace"
)

// handshakeState is what the two ends know of each other, and the signals that
// wait for an answer. WIRE.md §5.1 and §5.2 have the diagrams. The atomic flags are read
// without the lock of Conn. Times are since the endpoint's epoch.
type handshakeState struct {
	unvalidated atomic.Bool // the peer's address is not validated (RFC 9000 §8)
	active      atomic.Bool // a packet arrived since the list of half-open sessions was looked at; set only if unvalidated
	greeted     atomic.Bool // the peer is extended
	took        uint32      // how long the handshake limited the session, in milliseconds; 0: it does still

	opening.State[wire.Signal]
	kindAwaited  bool          // CloseWrite waits until Peer is known
	dropped      bool          // ended by the listener's end, before the application had it
	securing     bool          // with TLS: the machine's packets cannot be sent, as their keys are not agreed on
	openedFEC    bool          // the peer's first packet had an FEC header
	token        uint32        // ours, which the peer's signals must show; 0: not drawn yet
	peerToken    uint32        // the peer's, which our signals must show; 0: not known
	version      uint32        // of the peer's signals; 0: not known
	capabilities uint32        // of the peer, from its INFO: capPMTU, capReason
	cookie       wire.Signal   // goes with our HELLO; code 0: none
	born         time.Duration // when the session began
	reasons      *closeReasons // why the ends have closed the session; nil: neither has said so
}

// The version of the signals, and how often they are sent.
const (
	signalVersion = 2 // 1 did not seal the packets of a TLS handshake in the clear

	// helloTries is how many HELLOs without a WELCOME show a legacy peer, if
	// other packets arrive from it.
	helloTries = 8
	// legacyAnswers is how many plain window updates show the same sooner. A
	// legacy peer takes HELLO for a window probe, and answers with one.
	legacyAnswers = 2
)

// requestWait returns how long to wait for an answer before a request is repeated: the
// machine's RTO within limits, and no less than what answers to signals have taken.
func (c *session) requestWait() time.Duration {
	rto := time.Duration(c.kcp.Sender().RTO()) * time.Millisecond
	return max(opening.MinWait, min(rto, opening.MaxWait), c.rtt.Timeout())
}

// dial begins a session that this end dials, unless it has ended, as a packet, or the
// endpoint's end, was first. With opening.Dialling Dial waits for the peer's answer, with
// opening.Dialled it does not, and with opening.Quiet nothing leaves before there is data.
func (c *session) dial(as opening.Role) {
	if c.closing.Phase >= closing.Ended {
		return
	}
	now := c.host.now()
	if c.hs.Role = as; as == opening.Quiet {
		c.schedule(now)
	} else if c.beginOpening(now) {
		c.kick(now)
	}
}

// dialled ends the wait of Dial. If the peer has not answered, it ends the session, and
// returns why, which may be what unanswered returns.
func (c *session) dialled(unanswered func() error) error {
	c.hs.Role = opening.Dialled
	if c.closing.Phase < closing.Ended {
		c.schedule(c.host.now())
	}
	err := c.closing.err
	switch {
	case c.hs.Reached && (err == nil || err == ErrPeerClosed):
		return nil // there may be data from before the peer closed
	case err == nil && c.closing.Caller != closing.Uses:
		err = net.ErrClosed // by Shutdown
	case err == nil:
		err = unanswered()
	}
	c.forget(err)
	return err
}

// accept makes a new session one whose first packet is p, as first says. validated
// reports whether the peer's address is validated. No other goroutine has c yet.
func (c *session) accept(first *admission.First, p *inPacket, validated bool) {
	c.ends.Store(&pathEnds{c.ends.Load().remote, p.from.local})
	c.hs.openedFEC = p.kind == fecPacket
	greets := first.Hello.Code != 0
	if greets {
		c.takeHello(signalOf(first.Hello))
	}
	if greets && first.Info.Code != 0 && first.Keys == nil {
		c.onInfo(signalOf(first.Info)) // the session may be accepted, and used, before p is fed to it
	}
	if first.Keys != nil {
		c.tls.handshake.Accept(first.Keys, c.hs.token, c.hs.peerToken, handshakeSignal(c.infoSignal()))
	}
	if validated {
		return
	}
	c.hs.unvalidated.Store(true)
	room := c.shared.overhead.total
	if !c.hs.openedFEC {
		room -= c.shared.overhead.fecHead
	}
	c.kcp.LimitUnvalidated(room, !greets)
}

// begin starts the timers of an accepted session. offer, unless it is nil, puts the
// session into the listener's backlog, which has room for it or not. begin reports false
// if the session has ended, be it for that.
func (c *session) begin(offer func(validated bool) bool) bool {
	if c.closing.Phase >= closing.Ended {
		return false
	}
	if offer != nil {
		if offer(!c.hs.unvalidated.Load()) {
			c.hs.Role = opening.Offered
		}
		if c.hs.Role == opening.Accepted && c.hs.Peer < opening.Extended { // an extended peer repeats CONFIRM
			c.shared.counters.dropBacklog.Add(1)
			c.forget(ErrRefused)
			return false
		}
	}
	c.schedule(c.host.now())
	return true
}

// setConv gives a new session, which is in no table yet, another conversation id.
func (c *session) setConv(conv uint32) {
	c.entry.Conv = conv
	c.kcp.SetConv(conv)
	c.protect()
}

// dialAnother makes a new session one whose peer dials too: tie goes with HELLO. again
// says that this end has dialled another before.
func (c *session) dialAnother(tie wire.Signal, again bool) {
	r := c.rarely()
	r.tie, r.again = tie, again
}

// hasten sends HELLO again without waiting for its time-out, to another address unless to
// is nil: the peer's packets have come from there, so a NAT at its end that has dropped
// ours lets this one pass.
func (c *session) hasten(to *source, now time.Duration) {
	l := &c.hs
	if l.Reached || l.peerToken != 0 || c.closing.Phase >= closing.Ended || to != nil && !c.migrateTo(*to) {
		return
	}
	at := max(now, l.HelloAt+opening.HelloGap)
	if l.Unanswered&opening.Hello != 0 && at < l.Next() && c.mayHasten() {
		l.Hurry(opening.Hello, at)
		c.kick(now)
	}
}

// moveOpening moves the session to an address of its peer, by which the opening goes on.
// It reports whether packets that come from there are of the session.
func (c *session) moveOpening(to source) bool {
	l := &c.hs
	return c.closing.Phase < closing.Ended && (l.Role >= opening.Dialled && !l.Reached || l.unvalidated.Load()) && c.migrateTo(to)
}

// evictAfter is the age from which a session that is not established may be ended to make
// room for one of a network that has as many.
const evictAfter = 3 * time.Second

// evictable reports whether the session may be ended to make room. A packet since
// the last call keeps it. Endpoint.mu is held; it needs no other lock.
func (c *session) evictable(now time.Duration) fair.Look {
	switch {
	case !c.entry.Validated() && !c.halfOpen(): // it is about to be counted
		return fair.Stays
	case now-c.hs.born < evictAfter:
		return fair.Young
	case c.hs.active.Swap(false):
		return fair.Active
	}
	return fair.Idle
}

// beginOpening starts a HELLO and reports true, or with TLS begins the handshake.
func (c *session) beginOpening(now time.Duration) bool {
	l := &c.hs
	l.token = c.shared.env.Token()
	if l.securing {
		c.dialTLS()
		return false
	}
	l.Start(opening.Hello, wire.Signal{Code: wire.Hello, SN: 0, TS: l.token}, now, c.firstHello())
	return true
}

// firstHello returns the time from the first HELLO to the second.
func (c *session) firstHello() time.Duration {
	if c.rare != nil && c.rare.again {
		return opening.EagerWait // the rhythm of the one before goes on
	}
	return opening.FirstHello
}

// mayHasten reports whether HELLO may leave sooner than it is due, because of a packet.
// In a simultaneous open the packet may be forged, and the address another's: what has
// come from there has to pay for it, until the peer has shown that it is there (RFC 9000
// §8.1).
func (c *session) mayHasten() bool {
	return !c.rare.simultaneous() || c.host.pays(c.helloSize())
}

// helloSize returns how many bytes HELLO has, in all its packets.
func (c *session) helloSize() int {
	if x := c.tlsHandshake(); x != nil {
		return x.HelloSize()
	}
	return c.shared.overhead.total + 4*wire.HeaderSize // with INFO, TIEBREAKER and maybe a cookie
}

// starved reports whether nothing may be sent to the peer before a packet comes from it
// (anti-amplification limit, RFC 9000 §8.1).
func (c *session) starved() bool {
	v := c.kcp.Validation()
	return v != nil && (c.path.blocked || !v.Allows(wire.HeaderSize, true))
}

// silent reports whether a session that was dialled quietly has yet to send its
// HELLO. It need not if the peer's HELLO came first.
func (l *handshakeState) silent() bool {
	return l.Role == opening.Quiet && l.Of(opening.Hello).Signal.Code == 0 && l.Peer < opening.Extended
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
// INFO, and TIEBREAKER.
func (c *session) queueHello() {
	l, k := &c.hs, c.kcp
	k.SignalQueue().Add(l.Of(opening.Hello).Signal)
	if l.cookie.Code != 0 {
		k.SignalQueue().Add(l.cookie)
	}
	k.SignalQueue().Add(c.infoSignal())
	k.SignalQueue().Add(c.rare.tiebreaker()...)
}

// addressValidated marks the peer's address as validated (RFC 9000 §8), and
// lifts the anti-amplification limit (RFC 9000 §8.1). It ends the session after
// the batch if the peer's network exceeds Limits.MaxSessionsPerAddress.
func (c *session) addressValidated() {
	if !c.hs.unvalidated.CompareAndSwap(true, false) {
		return
	}
	c.shared.load.halfOpen.Add(-1)
	c.kcp.ValidateAddress()
	c.traceState(trace.SessionEstablished, nil)
	c.step.left.ready |= admitted
	if c.hs.Peer == opening.Unknown {
		c.hs.Peer = opening.Legacy // a HELLO may still correct that
	}
	if !c.host.validated() {
		c.closing.ending = ErrReset
	}
}

// offer puts an accepted session into the listener's backlog, once. It reports
// false if there is no room; without a listener, it also ends the session after
// the batch.
func (c *session) offer() bool {
	if c.hs.Role != opening.Accepted {
		return true
	}
	ok, none := c.host.offer()
	if none {
		c.closing.ending, c.hs.dropped = ErrRefused, true
	}
	if ok {
		c.hs.Role = opening.Offered
	}
	return ok
}
