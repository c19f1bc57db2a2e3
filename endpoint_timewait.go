package kcp

import (
	"time"

	"github.com/arqnet/kcp/internal/udp"
)

// timeWaitTime is how long stragglers of an ended session are recognised
// (TIME-WAIT, RFC 9293 §3.6.1). maxTimeWait is how many ended sessions an
// endpoint remembers.
const (
	timeWaitTime = 60 * time.Second
	maxTimeWait  = 8192
)

// timeWait is the state of a session in TIME-WAIT: as much as it takes to
// answer a peer that does not know of the end yet.
type timeWait struct {
	until   time.Duration  // end of TIME-WAIT, since the epoch
	una     seq            // all data of the peer before it has arrived
	token   uint32         // the peer's, which it expects in ABORT and TOKEN; 0: the peer gets no reply
	own     uint32         // this end's token
	aborted bool           // the session did not end in order
	dropped bool           // it ended before the application could have it
	numbers *packetNumbers // of the session, now guarded by Endpoint.mu; nil: none
}

// timeWaitTable remembers ended sessions for timeWaitTime, in bounded memory.
// Endpoint.mu guards it.
type timeWaitTable struct {
	entries map[sessionKey]timeWait // nil: none yet
	order   []sessionKey            // of entries, oldest first
	latest  map[uint32]sessionKey   // latest session with an extended peer, by conversation id
	timer   *time.Timer             // calls expireTimeWaits; nil: none is set, as there are no entries
	used    convHistory             // kept only with AllowLegacy and an authenticating cipher

	// cutUntil is when the last entry that was removed before its time would
	// have been resetKeyWithin old, since the epoch.
	cutUntil time.Duration
}

// convHistory remembers the last maxConvs conversation ids of ended sessions
// with extended peers, for longer than TIME-WAIT.
type convHistory struct {
	convs map[uint32]struct{}
	order []uint32 // the same, oldest first; a ring once it is full
	next  int      // in order: the oldest, once it is full
}

// maxConvs is how many ids are remembered, in about 1 MiB.
const maxConvs = 1 << 15

// add remembers conv.
func (h *convHistory) add(conv uint32) {
	if h.convs == nil {
		h.convs = make(map[uint32]struct{})
	}
	if _, again := h.convs[conv]; again {
		return
	}
	h.convs[conv] = struct{}{}
	if len(h.order) < maxConvs {
		h.order = append(h.order, conv)
		return
	}
	delete(h.convs, h.order[h.next])
	h.order[h.next] = conv
	h.next = (h.next + 1) % maxConvs
}

// has reports whether conv is remembered.
func (h *convHistory) has(conv uint32) bool {
	_, ok := h.convs[conv]
	return ok
}

// add puts tw into TIME-WAIT from now on.
func (t *timeWaitTable) add(key sessionKey, tw timeWait, now time.Duration) {
	if t.entries == nil {
		t.entries = make(map[sessionKey]timeWait)
	}
	t.expire(now)
	for len(t.order) >= maxTimeWait {
		t.cutUntil = max(t.cutUntil, t.entries[t.order[0]].until-timeWaitTime+resetKeyWithin)
		t.removeOldest()
	}
	if _, again := t.entries[key]; !again {
		t.order = append(t.order, key)
	}
	tw.until = now + timeWaitTime
	t.entries[key] = tw
	if tw.token != 0 {
		if t.latest == nil {
			t.latest = make(map[uint32]sessionKey)
		}
		t.latest[key.conv] = key
	}
}

// removeOldest forgets the oldest entry.
func (t *timeWaitTable) removeOldest() {
	oldest := t.order[0]
	delete(t.entries, oldest)
	if t.latest[oldest.conv] == oldest {
		delete(t.latest, oldest.conv)
	}
	t.order = t.order[1:]
}

// expire forgets the entries whose time has passed.
func (t *timeWaitTable) expire(now time.Duration) {
	for len(t.order) > 0 && t.entries[t.order[0]].until <= now {
		t.removeOldest()
	}
}

// expireTimeWaits forgets what is no longer in TIME-WAIT while no further session
// ends, twice its time after the last one at the latest. With the last entry goes
// the memory of the table: a map gives none back.
func (e *Endpoint) expireTimeWaits() {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := &e.table.timeWaits
	t.expire(e.now())
	switch {
	case e.closed:
	case len(t.order) == 0:
		t.clear()
	default:
		t.timer.Reset(timeWaitTime)
	}
}

// expireLater has expireTimeWaits called.
func (t *timeWaitTable) expireLater(e *Endpoint) {
	if t.timer == nil {
		t.timer = time.AfterFunc(timeWaitTime, e.expireTimeWaits)
	}
}

// clear forgets all entries, and stops the timer, which would keep a closed
// endpoint in memory.
func (t *timeWaitTable) clear() {
	if t.timer != nil {
		t.timer.Stop()
	}
	t.entries, t.order, t.latest, t.timer = nil, nil, nil, nil
}

// holds reports whether key is in TIME-WAIT at the time now.
func (t *timeWaitTable) holds(key sessionKey, now time.Duration) bool {
	_, ok := t.at(key, now)
	return ok
}

// at returns the entry of key, if it is in TIME-WAIT at the time now.
func (t *timeWaitTable) at(key sessionKey, now time.Duration) (timeWait, bool) {
	tw, ok := t.entries[key]
	return tw, ok && now < tw.until
}

// atAnyAddress returns the latest entry of a session of conv with an extended
// peer, at whatever address, if it is in TIME-WAIT at the time now.
func (t *timeWaitTable) atAnyAddress(conv uint32, now time.Duration) (timeWait, bool) {
	return t.at(t.latest[conv], now)
}

// timeWaitState returns the state to remember of a session that has ended.
func (c *Conn) timeWaitState() timeWait {
	l := &c.hs
	tw := timeWait{una: c.kcp.recvNext(), numbers: c.in.numbers}
	if l.kind == peerExtended {
		tw.token, tw.own = l.peerToken, l.token
		tw.aborted = c.closing.err != nil && c.closing.err != ErrPeerClosed
		tw.dropped = !l.offered
	}
	return tw
}

// timeWaitForLocked returns the entry that a packet of no session belongs to.
// With an authenticating cipher the peer may have changed its address since: it
// still has to learn how its session has ended. Endpoint.mu is held.
func (e *Endpoint) timeWaitForLocked(key sessionKey, f initialPacket, now time.Duration) (timeWait, bool) {
	tw, ok := e.table.timeWaits.at(key, now)
	if e.config.SharedConvs {
		return tw, ok && !tw.begunAnew(f)
	}
	if !ok && e.protection.authentic && f.hello.code == 0 {
		tw, ok = e.table.timeWaits.atAnyAddress(key.conv, now)
	}
	return tw, ok
}

// begunAnew reports whether a packet opens another session of the same address
// and conversation id, with Config.SharedConvs: a HELLO with a token of its own,
// or, after a session with a legacy peer, the first segment. An extended peer
// may still repeat the first segment of the old session.
func (tw *timeWait) begunAnew(f initialPacket) bool {
	if f.hello.code != 0 {
		return f.hello.ts != tw.token
	}
	return f.push && tw.token == 0
}

// shownBy reports whether a packet shows this end's token of the ended session.
// Any other packet may be of a later session with Config.SharedConvs, whose data
// the una of a reply would acknowledge.
func (tw *timeWait) shownBy(f initialPacket) bool {
	switch f.request.code {
	case sigConfirm:
		return f.request.sn == tw.own
	case sigFin, sigClose:
		return f.request.ts == tw.own
	}
	return false
}

// replyInTimeWaitLocked replies to a packet of an ended session. It answers the
// request in the packet, or acknowledges its data. If the session was aborted,
// it sends ABORT, whose una the peer ignores. It does not reply to a legacy peer, which would take the reply
// for the first packet of a new session. Endpoint.mu is held.
func (e *Endpoint) replyInTimeWaitLocked(tw timeWait, key sessionKey, d *udp.Datagram, f initialPacket, p *inPacket) {
	h := header{conv: key.conv, una: tw.una}
	reply := func(s ...signal) {
		if e.mayReplyLocked(&e.replies.budget, replyRate) {
			e.putNumberedLocked(d, tw.numbers.sender(), h, s...)
		}
	}
	if f.hello.code != 0 {
		if tw.aborted && tw.dropped && tw.token == f.hello.ts { // the dialling peer has not had our WELCOME
			e.replyLocked(d, header{conv: key.conv}, signal{sigAbort, tw.token, 0})
		}
		return
	}
	switch {
	case !tw.numbers.of(p):
		// Recorded and replayed.
	case tw.token == 0 || !f.data && f.request.code == 0:
		// Two ends in TIME-WAIT that answered each other would never stop.
	case e.config.SharedConvs && !tw.aborted && !tw.shownBy(f):
		// It may be of a session that begins.
	case tw.aborted:
		reply(signal{sigAbort, tw.token, 0})
	case f.request.code == sigPing && e.protection.authentic:
		reply(f.request.answer(), signal{sigToken, tw.token, tw.own})
	case f.request.code != 0:
		reply(f.request.answer())
	case f.data:
		reply(e.infoSignal()) // for its una
	}
}
