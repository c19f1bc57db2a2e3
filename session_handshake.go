package kcp

import "time"

// lifecycle is what a session knows of its peer's life, and what it has to
// tell of its own. WIRE.md §5 has the state diagrams. It belongs to Conn.mu.
type lifecycle struct {
	kind      peerKind
	reached   bool   // something has come from the peer
	welcomed  bool   // and the answer to our hello, which has our token
	confirmed bool   // the peer of an accepted session has shown our token
	token     uint32 // what the peer's signals must show
	peerToken uint32 // what ours must show
	version   uint32 // the peer's
	abilities uint32
	cookie    signal        // to go with the hello; of no code while there is none
	helloAt   time.Duration // when the hello was sent last

	hello, confirm, finish, ping request

	closing    signalCode // sigFin or sigClose, once we have nothing more to say
	finished   bool       // the peer knows of that
	halfClosed bool       // closing was sigFin at first,
	finTold    bool       // and the peer knows of that at least
	peerFin    bool       // the peer says nothing from peerFinal on,
	peerClosed bool       // and reads nothing any more
	cookies    uint8      // that had the hello sent again at once
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

// waiting reports whether the peer owes an answer.
func (l *lifecycle) waiting() bool {
	return l.hello.active && !l.reached || l.confirm.active || l.finish.active || l.ping.active
}

// over reports whether both directions have come to their ends, so that there
// is nothing left that the peer could do.
func (c *Conn) over() bool {
	l := &c.life
	return c.heardOut() &&
		(l.peerClosed || l.finished && c.kcp.WaitSend() == 0)
}

// heardOut reports whether all that the peer had to say has come.
func (c *Conn) heardOut() bool { return c.life.peerFin && !c.kcp.rcvNxt.before(c.life.peerFinal) }

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
		l.ping.start(signal{sigPing, randomConv(), randomConv()}, now, c.pingWait())
		c.missed = true
	}
	if r := &l.hello; r.due(now) {
		if l.reached && r.tries >= helloTries && l.kind == peerUnknown {
			r.active = false
			l.kind = peerLegacy
		} else { // one of ours may not have got it: somebody else may have said hello in its name
			c.queueHello()
			r.sent(now)
			l.helloAt = now
			if !l.reached && r.tries <= eagerHellos {
				r.next = min(r.next, now+maxHelloWait)
			}
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
	case c.state != stateOpen && c.state != stateLingering, c.over(), c.dialled && !l.reached:
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
	if handshake := c.lastHeard + handshakeTime; c.unconfirmed() && (at == 0 || handshake < at) {
		at = handshake
	}
	if c.ep.authentic && l.kind == peerOurs && c.lastData > 0 && !c.missed {
		// Where sessions may move, it may be ours that has: then the peer
		// sends to an address that is no longer ours, and must hear from us.
		if miss := max(c.lastHeard, c.lastData) + missAfter; at == 0 || miss < at {
			at = miss
		}
	}
	return at
}

// unconfirmed reports whether the peer of an accepted session has said hello and
// not yet shown that it has the answer, which it repeats until we have answered.
// Its cookie may have been the last that it has ever sent.
func (c *Conn) unconfirmed() bool {
	return !c.dialled && c.life.kind == peerOurs && !c.life.confirmed
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
	if l.kind == peerUnknown && l.hello.tries == 1 && c.kcp.counters.WindowUpdates > 0 {
		l.hello.next = now // it seems to know no signals: the second answer shows it
	}
	c.suspectRestart(asked, now)
	if v := c.kcp.validation; v != nil && v.done {
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
		l.hello.start(l.hello.signal, max(c.lastInput, l.helloAt+minHelloWait), firstHelloWait)
	}
}

// takeSignal takes s, and is true for what is not from within the session. What
// ends the session is left to the end of the batch.
func (c *Conn) takeSignal(s signal) (outside bool) {
	switch s.code {
	case sigInfo:
		c.learn(s)
		if waiting := c.kcp.signals; len(waiting) > 0 && waiting[len(waiting)-1].code == sigHello|sigAnswer {
			c.queueAnswer(infoSignal()) // so the answer to hello is no larger than what came
		}
	case sigCookie, sigReset, sigAbort:
		c.takeOutside(s)
		return true
	default:
		if s.code&sigAnswer != 0 {
			return c.takeAnswer(s)
		}
		return c.takeRequest(s)
	}
	return false
}

// queueAnswer has a leave with the next flush, once however often it was asked
// for.
func (c *Conn) queueAnswer(a signal) {
	k := c.kcp
	n := len(k.signals)
	if n < maxSignals && (n == 0 || k.signals[n-1] != a) {
		k.signals = append(k.signals, a)
	}
}

// takeRequest is takeSignal for a signal that wants an answer.
func (c *Conn) takeRequest(s signal) (outside bool) {
	l := &c.life
	ours := l.kind == peerOurs
	switch s.code {
	case sigHello:
		if !c.takeHello(s) {
			return true
		}
		c.queueAnswer(signal{sigHello | sigAnswer, l.token, l.peerToken})
	case sigConfirm:
		if s.sn != l.token {
			c.queueAnswer(c.disown(s))
			return true
		}
		if !ours || s.ts != l.peerToken {
			return true
		}
		if c.offer() { // else it asks again
			c.prove()
			l.confirmed = true
			c.queueAnswer(s.answer())
			c.queueAnswer(infoSignal())
		}
	case sigFin, sigClose:
		if s.ts != l.token {
			c.queueAnswer(c.disown(s))
			return true
		}
		if !ours || !c.offer() {
			return true // or it asks again
		}
		c.prove() // as confirm does, which may have been lost
		l.confirmed = true
		if !c.takeFin(s) {
			return true
		}
		c.queueAnswer(s.answer())
	case sigPing:
		if l.token == 0 { // nobody without signals asks so
			c.queueAnswer(c.disown(s))
			return true
		}
		c.queueAnswer(s.answer())
		if ours && c.ep.authentic && !c.unproven.Load() {
			c.queueAnswer(signal{sigToken, l.peerToken, l.token}) // the question may be a challenge
		}
	case sigProbe:
		c.queueAnswer(s.answer())
	}
	return false
}

// takeAnswer is takeSignal for the answer to a signal.
func (c *Conn) takeAnswer(s signal) (outside bool) {
	l, k := &c.life, c.kcp
	switch s.code {
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
	case sigConfirm | sigAnswer:
		l.confirm.answered(s)
	case sigFin | sigAnswer, sigClose | sigAnswer:
		if l.finish.answered(s) {
			l.finished = true
		} else if l.halfClosed && s == (signal{sigFin | sigAnswer, uint32(k.sndEnd), l.peerToken}) {
			l.finTold = true // it has been overtaken by our close
		}
	case sigPing | sigAnswer:
		if r := &l.ping; r.active && r.tries > 0 && r.signal.answer() == s {
			c.prove()
		}
		c.pingAnswered(s)
	case sigProbe | sigAnswer:
		c.probeAnswered(s)
	}
	return false
}

// disown returns the answer to a signal of a peer that takes this session for
// another: for that of our life before a restart, say, whose first segment, sent
// again, has opened this one. It is that of an endpoint which knows no such
// session, and the peer believes it only if it has asked so.
//
// The session itself is not ended here, or one packet with forged tokens would
// end that of a peer that knows no signals. But it is asked for a sign of life,
// and PeerTimeout runs.
func (c *Conn) disown(s signal) signal {
	if l := &c.life; l.kind != peerOurs && !l.ping.active {
		at := c.lastInput + c.requestWait() // the peer is to hear of the reset first
		l.ping.start(signal{sigPing, randomConv(), randomConv()}, at, c.pingWait())
	}
	return signal{sigReset, s.sn, s.ts}
}

// pingWait returns how long to wait for the answer to a ping.
func (c *Conn) pingWait() time.Duration {
	if c.unproven.Load() {
		return unprovenWait
	}
	return c.requestWait()
}

// takeOutside takes a signal from outside the session.
func (c *Conn) takeOutside(s signal) {
	l := &c.life
	switch s.code {
	case sigCookie:
		if l.hello.active {
			l.cookie = s
			l.hello.next = max(c.lastInput, l.helloAt+minHelloWait)
			if l.cookies < maxCookies {
				l.cookies++
				l.hello.next = c.lastInput
			}
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
	if v := c.kcp.validation; v != nil {
		v.unacked = 0
	}
	c.number(false)
	return true
}

// takeFin notes where the peer's data ends. It is false where that cannot be:
// before what has come, or so far ahead that no window ever gets there.
func (c *Conn) takeFin(s signal) bool {
	l, next, final := &c.life, c.kcp.rcvNxt, seq(s.sn)
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
	l := &c.life
	for _, r := range []*request{&l.hello, &l.confirm, &l.finish, &l.ping} {
		if !r.active || r.tries == 0 || r.signal.sn != s.sn || r.signal.ts != s.ts {
			continue
		}
		c.ending = ErrReset
		l.peerToken = 0 // nobody is left to be told anything
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
	if c.state == stateLingering && (c.kcp.sndUna != c.lingerFrom || c.sizing(now)) {
		c.lingerFrom = c.kcp.sndUna
		c.wait(now)
	}
	if c.asksKind && l.kind != peerUnknown {
		c.asksKind = false
		c.canWrite.Broadcast()
	}
	switch {
	case c.ending != nil:
		c.end(c.ending)
	case l.peerClosed && c.heardOut():
		// We have all of it, and nothing that we could say matters to the peer.
		c.end(ErrPeerClosed)
	case c.state == stateLingering && c.delivered():
		c.leave(now)
	case c.state == stateLingering && now >= c.endAt:
		c.giveUp(now)
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
		// A peer that has nothing more to say need not know that we read no more.
		return l.finished || l.finTold && c.heardOut()
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
