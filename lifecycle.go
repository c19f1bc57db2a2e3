package kcp

import (
	"slices"
	"time"
)

// lifecycle is what a session knows of its peer's life, and what it has to
// tell of its own. WIRE.md §5 has the state diagrams. It belongs to Conn.mu.
type lifecycle struct {
	kind      peerKind
	reached   bool   // something has come from the peer
	welcomed  bool   // and the answer to our hello, which has our token
	token     uint32 // what the peer's signals must show
	peerToken uint32 // what ours must show
	version   uint32 // the peer's
	abilities uint32
	cookie    signal // to go with the hello; of no code while there is none

	hello, confirm, finish, ping request

	closing    signalCode // sigFin or sigClose, once we have nothing more to say
	finished   bool       // the peer knows of that
	peerFin    bool       // the peer says nothing from peerFinal on,
	peerClosed bool       // and reads nothing any more
	peerFinal  seq
}

// peerKind is what sort of endpoint the peer is.
type peerKind uint8

const (
	peerUnknown peerKind = iota
	peerLegacy           // does not know signals
	peerOurs             // does
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
	// unprovenWait is the distance of pings to a peer that may never have sent
	// anything: somebody else may have, in its name.
	unprovenWait = 10 * time.Second

	// uneasyAfter is the silence, while something is unacknowledged, after
	// which the peer is asked whether it still knows the session.
	uneasyAfter = time.Second
	// amnesiaAfter is for how long a peer that knows no signals may acknowledge
	// less than before, as packets that were overtaken do, before it is taken
	// for one that was restarted.
	amnesiaAfter = 5 * time.Second
	// amnesiaAnswers is how many answers of such a peer have to say so, too.
	amnesiaAnswers = 2
	// missAfter is the silence after data of the peer, in a session that may
	// move, after which it is asked once whether it still reaches us.
	missAfter = 2 * time.Second
)

// request is a signal that is repeated, at growing distances, until it has
// been answered.
type request struct {
	next   time.Duration
	signal signal
	wait   uint32 // in milliseconds
	tries  uint8  // no more than 255 are counted
	active bool
}

func (r *request) start(s signal, now, wait time.Duration) {
	*r = request{signal: s, active: true, wait: uint32(wait.Milliseconds()), next: now}
}

func (r *request) due(now time.Duration) bool { return r.active && now >= r.next }

func (r *request) sent(now time.Duration) {
	r.tries = max(r.tries, r.tries+1)
	r.next = now + time.Duration(r.wait)*time.Millisecond
	r.wait = max(r.wait, min(2*r.wait, uint32(maxRequestWait.Milliseconds())))
}

// answered takes the answer to r, if s is that.
func (r *request) answered(s signal) bool {
	if !r.active || r.signal.answer() != s {
		return false
	}
	r.active = false
	return true
}

// waiting reports whether the peer owes an answer.
func (l *lifecycle) waiting() bool {
	return l.hello.active && !l.reached || l.confirm.active || l.finish.active || l.ping.active
}

// over reports whether both directions have come to their ends, so that there
// is nothing left that the peer could do.
func (c *Conn) over() bool {
	l := &c.life
	return l.peerFin && c.kcp.rcvNxt == l.peerFinal &&
		(l.peerClosed || l.finished && c.kcp.WaitSend() == 0)
}

// requestWait returns how long to wait for an answer before asking again.
func (c *Conn) requestWait() time.Duration {
	rto := time.Duration(c.kcp.rtt.rto) * time.Millisecond
	return max(minRequestWait, min(rto, maxRequestWait))
}

// sayHello begins a session that we have dialled.
func (c *Conn) sayHello(now time.Duration) {
	l := &c.life
	l.token = randomToken()
	l.hello.start(signal{sigHello, 0, l.token}, now, firstHelloWait)
	c.speak(now)
}

// speak sends what the application has just given reason to say.
func (c *Conn) speak(now time.Duration) {
	c.tell(now)
	c.pump(now)
	c.settle(now)
	c.transmit()
}

// randomToken returns a number that nobody can guess, and not 0.
func randomToken() uint32 {
	for {
		if t := randomConv(); t != 0 {
			return t
		}
	}
}

// pump sends the requests that are due.
func (c *Conn) pump(now time.Duration) {
	l, k := &c.life, c.kcp
	if c.state == stateEnded || c.state == stateDraining {
		return
	}
	if l.closing != 0 && l.kind == peerOurs && !l.finished && !l.finish.active {
		l.finish.start(signal{l.closing, uint32(k.sndEnd), l.peerToken}, now, c.requestWait())
	}
	if at := c.pingAt(); at > 0 && now >= at && !l.ping.active {
		wait := c.requestWait()
		if c.unproven.Load() {
			wait = unprovenWait
		}
		l.ping.start(signal{sigPing, randomConv(), randomConv()}, now, wait)
		c.missed = c.lastData
	}
	if r := &l.hello; r.due(now) {
		if l.reached && r.tries >= helloTries {
			r.active = false
			if l.kind == peerUnknown {
				l.kind = peerLegacy
			}
		} else {
			c.queueHello()
			r.sent(now)
		}
	}
	for _, r := range []*request{&l.confirm, &l.finish, &l.ping} {
		if r.due(now) {
			k.signals = append(k.signals, r.signal)
			r.sent(now)
		}
	}
	if len(k.signals) > 0 {
		c.flush(now)
	}
	c.discover(now)
}

// queueHello puts the hello in front of what leaves next.
func (c *Conn) queueHello() {
	l, k := &c.life, c.kcp
	k.signals = append(k.signals, l.hello.signal)
	if l.cookie.code != 0 {
		k.signals = append(k.signals, l.cookie)
	}
	k.signals = append(k.signals, infoSignal())
}

// infoSignal tells our version and abilities.
func infoSignal() signal { return signal{sigInfo, signalVersion, abilityPMTU} }

// pingAt returns when the peer is to be asked for a sign of life; 0: not at all.
func (c *Conn) pingAt() time.Duration {
	l := &c.life
	switch {
	case c.state != stateOpen && c.state != stateLingering, c.over(), !l.reached:
		return 0
	case c.outstanding && l.kind == peerOurs:
		return max(c.lastHeard, c.since) + uneasyAfter
	}
	at := time.Duration(0)
	if idle := c.ep.config.KeepAlive; idle > 0 && c.state == stateOpen {
		if !c.dialled {
			idle += idle / 2 // the dialling side's turn comes first: one exchange serves both
		}
		at = c.lastHeard + idle
	}
	if c.ep.authentic && l.kind == peerOurs && c.lastData > c.missed {
		// Where sessions may move, it may be ours that has: then the peer
		// sends to an address that is no longer ours, and must hear from us.
		if miss := max(c.lastHeard, c.lastData) + missAfter; at == 0 || miss < at {
			at = miss
		}
	}
	return at
}

// nextSignal returns when pump has something to do; 0: never.
func (c *Conn) nextSignal() time.Duration {
	l := &c.life
	at := time.Duration(0)
	if c.state == stateDraining {
		return 0
	}
	if !l.ping.active {
		at = c.pingAt()
	}
	for _, r := range []*request{&l.hello, &l.confirm, &l.finish, &l.ping} {
		if r.active && (at == 0 || r.next < at) {
			at = max(r.next, 1)
		}
	}
	if p := c.search; p != nil && p.active() && c.discovers() && (at == 0 || p.next < at) {
		at = max(p.next, 1)
	}
	return at
}

// heard notes that a good packet has come from the peer.
func (c *Conn) heard(now time.Duration) {
	l := &c.life
	c.lastHeard = now
	asked := l.ping.active && l.ping.tries > 0
	if asked || !c.kcp.unaBack {
		l.ping.active = false // anything is a sign of life
	}
	if !l.reached {
		l.reached = true
		c.canWrite.Broadcast() // Dial waits for it
	}
	if l.kind == peerUnknown && l.hello.active && c.kcp.counters.WindowUpdates >= legacyAnswers {
		l.hello.active = false
		l.kind = peerLegacy
	}
	c.suspectRestart(asked, now)
	if c.unproven.Load() && l.kind != peerOurs && (c.kcp.sndUna > 0 || now-c.born >= provenAfter) {
		c.prove()
	}
}

// suspectRestart ends the session with a peer that knows no signals, and seems
// to have forgotten it. Packets that were overtaken, or recorded and sent again,
// look alike; so the peer is asked, and has to answer so twice. asked is true
// where a question was out as the packet at work came.
func (c *Conn) suspectRestart(asked bool, now time.Duration) {
	l := &c.life
	switch {
	case !c.kcp.unaBack || l.kind == peerOurs || c.unproven.Load():
		c.unaBackSince, c.forgetful = 0, 0
		return
	case c.unaBackSince == 0:
		c.unaBackSince = now
	case asked && c.forgetful < amnesiaAnswers:
		c.forgetful++
	}
	if c.forgetful == amnesiaAnswers && now-c.unaBackSince >= amnesiaAfter {
		c.ending = ErrReset
	} else if !l.ping.active {
		l.ping.start(signal{sigPing, randomConv(), randomConv()}, now+uneasyAfter, c.requestWait())
	}
}

// onSignal is the state machine's hook. It is true where una and wnd of the
// segment mean nothing, because it is not from within the session; its packet
// then is no sign of life either.
func (c *Conn) onSignal(s signal) bool {
	c.askAgain()
	outside := c.takeSignal(s)
	c.outside = c.outside || outside
	return outside
}

// askAgain says hello again to a peer that seemed to know no signals, because so
// many answers were lost, and now has sent one.
func (c *Conn) askAgain() {
	l := &c.life
	if c.dialled && l.kind == peerLegacy {
		l.kind = peerUnknown
		l.hello.start(l.hello.signal, c.lastInput, firstHelloWait)
	}
}

// takeSignal takes s, and is true for what is not from within the session. What
// ends the session is left to the end of the batch.
func (c *Conn) takeSignal(s signal) (outside bool) {
	l, k := &c.life, c.kcp
	reply := func(a signal) {
		if !slices.Contains(k.signals, a) { // however often it was asked
			k.signals = append(k.signals, a)
		}
	}
	ours := l.kind == peerOurs
	switch s.code {
	case sigHello:
		if !c.takeHello(s) {
			return true
		}
		reply(signal{sigHello | sigAnswer, l.token, l.peerToken})
	case sigHello | sigAnswer:
		if !c.dialled || s.ts != l.token {
			return true
		}
		if !l.welcomed { // whatever has said hello before does not know our token
			l.welcomed, l.hello.active = true, false
			l.kind, l.peerToken, l.finish.signal.ts = peerOurs, s.sn, s.sn
			c.greeted.Store(true)
			c.number(true)
			l.confirm.start(signal{sigConfirm, l.peerToken, l.token}, c.lastInput, c.requestWait())
		}
	case sigInfo:
		c.learn(s)
		if n := len(k.signals); n > 0 && k.signals[n-1].code == sigHello|sigAnswer {
			reply(infoSignal()) // so the answer to hello is no larger than what came
		}
	case sigConfirm:
		if !ours || s.sn != l.token || s.ts != l.peerToken {
			return true
		}
		if c.offer() { // else it asks again
			c.prove()
			reply(s.answer())
			reply(infoSignal())
		}
	case sigConfirm | sigAnswer:
		l.confirm.answered(s)
	case sigFin, sigClose:
		if !ours || s.ts != l.token || !c.offer() {
			return true // or it asks again
		}
		c.prove() // as confirm does, which may have been lost
		if !c.takeFin(s) {
			return true
		}
		reply(s.answer())
	case sigFin | sigAnswer, sigClose | sigAnswer:
		if l.finish.answered(s) {
			l.finished = true
		}
	case sigPing:
		reply(s.answer())
		if ours && c.ep.authentic && !c.unproven.Load() {
			reply(signal{sigToken, l.peerToken, l.token}) // the question may be a challenge
		}
	case sigPing | sigAnswer:
		c.pingAnswered(s)
	case sigProbe:
		reply(s.answer())
	case sigProbe | sigAnswer:
		c.probeAnswered(s)
	case sigCookie, sigReset, sigAbort:
		c.takeOutside(s)
		return true
	}
	return false
}

// takeOutside takes a signal from outside the session.
func (c *Conn) takeOutside(s signal) {
	l := &c.life
	switch s.code {
	case sigCookie:
		if l.hello.active {
			l.cookie = s
			l.hello.next = c.lastInput
		}
	case sigReset:
		c.takeReset(s)
	case sigAbort:
		if l.kind == peerOurs && s.sn == l.token {
			c.ending = ErrReset
		}
	}
}

// takeHello learns from the peer's hello. It is false for one of another life
// of the peer.
func (c *Conn) takeHello(s signal) bool {
	l := &c.life
	if l.peerToken != 0 && l.peerToken != s.ts {
		return false
	}
	if l.token == 0 {
		l.token = randomToken()
	}
	l.peerToken, l.kind = s.ts, peerOurs
	c.greeted.Store(true)
	c.number(false)
	return true
}

// takeFin notes where the peer's data ends. It is false where that cannot be.
func (c *Conn) takeFin(s signal) bool {
	l, final := &c.life, seq(s.sn)
	if l.peerFin && l.peerFinal != final || final.before(c.kcp.rcvNxt) {
		return false
	}
	l.peerFin, l.peerFinal = true, final
	l.peerClosed = l.peerClosed || s.code == sigClose
	return true
}

// takeReset ends the session where s names a request of ours that waits, which
// only the peer, or somebody on the path, can know.
func (c *Conn) takeReset(s signal) {
	l := &c.life
	for _, r := range []*request{&l.hello, &l.confirm, &l.finish, &l.ping} {
		if !r.active || r.tries == 0 || r.signal.sn != s.sn || r.signal.ts != s.ts {
			continue
		}
		c.ending = ErrReset
		if r == &l.hello {
			c.ending = ErrRefused
		}
		if r == &l.finish && c.kcp.WaitSend() == 0 {
			// It had everything and has forgotten us since.
			c.ending, l.finished, l.finish.active = nil, true, false
		}
	}
}

// progress goes on in the life of the session after a batch of input, or
// whatever else may have been waited for.
func (c *Conn) progress(now time.Duration) {
	l := &c.life
	if c.state == stateEnded || c.state == stateDraining {
		return
	}
	if l.peerClosed && c.kcp.WaitSend() > 0 {
		// The una that came with the close covers all the peer ever took.
		c.undelivered = true
		c.kcp.discardSend()
		c.canWrite.Broadcast()
	}
	if c.state == stateLingering && c.kcp.sndUna != c.lingerFrom {
		c.lingerFrom = c.kcp.sndUna
		c.endAt = now + c.patience()
	}
	switch {
	case c.ending != nil:
		c.end(c.ending)
	case l.peerClosed && c.kcp.rcvNxt == l.peerFinal:
		// We have all of it, and nothing that we could say matters to the peer.
		c.end(ErrPeerClosed)
	case c.state == stateLingering && c.delivered():
		c.leave(now)
	case c.state == stateLingering && c.endAt > 0 && now >= c.endAt:
		c.undelivered = true
		c.abort(ErrNotDelivered)
	}
}

// delivered reports whether a closed session has nothing left to do for the
// application.
func (c *Conn) delivered() bool {
	l := &c.life
	if c.kcp.WaitSend() > 0 {
		return false
	}
	switch l.kind {
	case peerOurs:
		return l.finished
	case peerUnknown:
		// Nothing was ever said to it, or it may yet prove to be one of ours.
		return !l.hello.active || !l.reached && c.kcp.sndUna == 0
	}
	return true
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
	l := &c.life
	return PeerInfo{Known: l.kind != peerUnknown, Legacy: l.kind == peerLegacy, Version: int(l.version)}
}
