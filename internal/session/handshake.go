package session

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

	opening.State
	kindAwaited  bool          // CloseWrite waits until Peer is known
	dropped      bool          // ended by the listener's end, before the application had it
	securing     bool          // with TLS: the machine's packets cannot be sent, as their keys are not agreed on
	openedFEC    bool          // the peer's first packet had an FEC header
	token        uint32        // ours, which the peer's signals must show; 0: not drawn yet
	peerToken    uint32        // the peer's, which our signals must show; 0: not known
	version      uint32        // of the peer's signals; 0: not known
	capabilities uint32        // of the peer, from its INFO: CapPMTU, CapReason
	cookie       wire.Signal   // goes with our HELLO; code 0: none
	born         time.Duration // when the session began
	reasons      *closeReasons // why the ends have closed the session; nil: neither has said so
}

// The version of the signals, and what shows a legacy peer.
const (
	signalVersion = 2 // 1 did not seal the packets of a TLS handshake in the clear

	// HelloTries is how many HELLOs without a WELCOME show a legacy peer, if
	// other packets arrive from it.
	HelloTries = 8
	// LegacyAnswers is how many plain window updates show the same sooner. A
	// legacy peer takes HELLO for a window probe, and answers with one.
	LegacyAnswers = 2
)

// requestWait returns how long to wait for an answer before a request is repeated: the
// machine's RTO within limits, and no less than what answers to signals have taken.
func (c *Session) requestWait() time.Duration {
	rto := time.Duration(c.kcp.Sender().RTO()) * time.Millisecond
	return max(opening.MinWait, min(rto, opening.MaxWait), c.rtt.Timeout())
}

// Dial begins a session that this end dials, unless it has ended, as a packet, or the
// endpoint's end, was first. With opening.Dialling Dial waits for the peer's answer, with
// opening.Dialled it does not, and with opening.Quiet nothing leaves before there is data.
func (c *Session) Dial(as opening.Role) {
	if c.closing.Phase >= closing.Ended {
		return
	}
	now := c.host.Now()
	if c.hs.Role = as; as == opening.Quiet {
		c.schedule(now)
	} else if c.beginOpening(now) {
		c.kick(now)
	}
}

// Dialled ends the wait of Dial. If the peer has not answered, it ends the session, and
// returns why, which may be what unanswered returns.
func (c *Session) Dialled(unanswered func() error) error {
	c.hs.Role = opening.Dialled
	if c.closing.Phase < closing.Ended {
		c.schedule(c.host.Now())
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

// Accept makes a new session one whose first packet is p, as first says. validated
// reports whether the peer's address is validated. No other goroutine has c yet.
func (c *Session) Accept(first *admission.First, p *InPacket, validated bool) {
	c.ends.Store(&pathEnds{c.ends.Load().remote, p.From.Local})
	c.hs.openedFEC = p.Kind == FECPacket
	greets := first.Hello.Code != 0
	if greets {
		c.takeHello(first.Hello)
	}
	if greets && first.Info.Code != 0 && first.Keys == nil {
		c.onInfo(first.Info) // the session may be accepted, and used, before p is fed to it
	}
	if first.Keys != nil {
		c.tls.handshake.Accept(first.Keys, c.hs.token, c.hs.peerToken, c.infoSignal())
	}
	if validated {
		return
	}
	c.hs.unvalidated.Store(true)
	room := c.shared.Overhead.Total
	if !c.hs.openedFEC {
		room -= c.shared.Overhead.fecHead
	}
	c.kcp.LimitUnvalidated(room, !greets)
}

// Begin starts the timers of an accepted session. offer, unless it is nil, puts the
// session into the listener's backlog, which has room for it or not. Begin reports false
// if the session has ended, be it for that.
func (c *Session) Begin(offer func(validated bool) bool) bool {
	if c.closing.Phase >= closing.Ended {
		return false
	}
	if offer != nil {
		if offer(!c.hs.unvalidated.Load()) {
			c.hs.Role = opening.Offered
		}
		if c.hs.Role == opening.Accepted && c.hs.Peer < opening.Extended { // an extended peer repeats CONFIRM
			c.shared.Counters.DropBacklog.Add(1)
			c.forget(ErrRefused)
			return false
		}
	}
	c.schedule(c.host.Now())
	return true
}

// SetConv gives a new session, which is in no table yet, another conversation id.
func (c *Session) SetConv(conv uint32) {
	c.entry.Conv = conv
	c.kcp.SetConv(conv)
	c.protect()
}

// DialAnother makes a new session one whose peer dials too: tie goes with HELLO. again
// says that this end has dialled another before.
func (c *Session) DialAnother(tie wire.Signal, again bool) {
	r := c.rarely()
	r.tie, r.again = tie, again
}

// Hasten sends HELLO again without waiting for its time-out, to another address unless to
// is nil: the peer's packets have come from there, so a NAT at its end that has dropped
// ours lets this one pass.
func (c *Session) Hasten(to *Source, now time.Duration) {
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

// MoveOpening moves the session to an address of its peer, by which the opening goes on.
// It reports whether packets that come from there are of the session.
func (c *Session) MoveOpening(to Source) bool {
	l := &c.hs
	return c.closing.Phase < closing.Ended && (l.Role >= opening.Dialled && !l.Reached || l.unvalidated.Load()) && c.migrateTo(to)
}

// EvictAfter is the age from which a session that is not established may be ended to make
// room for one of a network that has as many.
const EvictAfter = 3 * time.Second

// Evictable reports whether the session may be ended to make room. A packet since
// the last call keeps it. Endpoint.mu is held; it needs no other lock.
func (c *Session) Evictable(now time.Duration) fair.Look {
	switch {
	case !c.entry.Validated() && !c.HalfOpen(): // it is about to be counted
		return fair.Stays
	case now-c.hs.born < EvictAfter:
		return fair.Young
	case c.hs.active.Swap(false):
		return fair.Active
	}
	return fair.Idle
}

// beginOpening starts a HELLO and reports true, or with TLS begins the handshake.
func (c *Session) beginOpening(now time.Duration) bool {
	l := &c.hs
	l.token = c.shared.Env.Token()
	if l.securing {
		c.dialTLS()
		return false
	}
	l.Start(opening.Hello, wire.Signal{Code: wire.Hello, SN: 0, TS: l.token}, now, c.firstHello())
	return true
}

// firstHello returns the time from the first HELLO to the second.
func (c *Session) firstHello() time.Duration {
	if c.rare != nil && c.rare.again {
		return opening.EagerWait // the rhythm of the one before goes on
	}
	return opening.FirstHello
}

// mayHasten reports whether HELLO may leave sooner than it is due, because of a packet.
// In a simultaneous open the packet may be forged, and the address another's: what has
// come from there has to pay for it, until the peer has shown that it is there (RFC 9000
// §8.1).
func (c *Session) mayHasten() bool {
	return !c.rare.simultaneous() || c.host.Pays(c.helloSize())
}

// helloSize returns how many bytes HELLO has, in all its packets.
func (c *Session) helloSize() int {
	if x := c.tlsHandshake(); x != nil {
		return x.HelloSize()
	}
	return c.shared.Overhead.Total + 4*wire.HeaderSize // with INFO, TIEBREAKER and maybe a cookie
}

// starved reports whether nothing may be sent to the peer before a packet comes from it
// (anti-amplification limit, RFC 9000 §8.1).
func (c *Session) starved() bool {
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
func (c *Session) breakSilence(now time.Duration) {
	c.hs.born = now // the peer knows of nothing before
	if c.beginOpening(now) {
		c.setClock(now)
		c.sendDueRequests(now)
	}
}

// kick sends the signals that a call of the application has just made due.
func (c *Session) kick(now time.Duration) {
	done := false
	defer c.endIfUnwound(&done)
	c.setClock(now)
	c.sendDueSignals(now)
	c.finishStep(now)
	done = true
}

// queueHello queues HELLO for the next flush, with the cookie, if any, and
// INFO, and TIEBREAKER.
func (c *Session) queueHello() {
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
func (c *Session) addressValidated() {
	if !c.hs.unvalidated.CompareAndSwap(true, false) {
		return
	}
	c.shared.Load.HalfOpen.Add(-1)
	c.kcp.ValidateAddress()
	c.traceState(trace.SessionEstablished, nil)
	c.step.left.Ready |= Admitted
	if c.hs.Peer == opening.Unknown {
		c.hs.Peer = opening.Legacy // a HELLO may still correct that
	}
	if !c.host.Validated() {
		c.closing.ending = ErrReset
	}
}

// offer puts an accepted session into the listener's backlog, once. It reports
// false if there is no room; without a listener, it also ends the session after
// the batch.
func (c *Session) offer() bool {
	if c.hs.Role != opening.Accepted {
		return true
	}
	ok, none := c.host.Offer()
	if none {
		c.closing.ending, c.hs.dropped = ErrRefused, true
	}
	if ok {
		c.hs.Role = opening.Offered
	}
	return ok
}
