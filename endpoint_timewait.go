package kcp

import (
	"time"

	"github.com/arqnet/kcp/internal/udp"
)

// timeWaitTime is how long stragglers of an ended session are recognised, and
// maxTimeWait how many ended sessions are remembered.
const (
	timeWaitTime = 60 * time.Second
	maxTimeWait  = 8192
)

// timeWait is what remains of an ended session: what it takes to answer a peer
// that has not heard of the end.
type timeWait struct {
	until   time.Duration
	una     seq    // all of the peer's data below has arrived
	token   uint32 // what the peer believes; 0: it is to be told nothing
	own     uint32 // ours
	aborted bool
	numbers *packetNumbers // of the session, which are the endpoint's now
}

// timeWaitTable remembers ended sessions for a while, in bounded memory.
type timeWaitTable struct {
	entries map[sessionKey]timeWait
	order   []sessionKey          // oldest first
	latest  map[uint32]sessionKey // of each conversation id the latest whose peer has signals
	used    convHistory
}

// convHistory remembers the last maxConvs conversation ids of ended sessions
// whose peers have signals, for longer than their graves last.
type convHistory struct {
	convs map[uint32]struct{}
	order []uint32 // a ring, once it is full
	next  int
}

// maxConvs is how many ids are remembered, in about 1 MiB.
const maxConvs = 1 << 15

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

func (h *convHistory) has(conv uint32) bool {
	_, ok := h.convs[conv]
	return ok
}

func (t *timeWaitTable) add(key sessionKey, tw timeWait, now time.Duration) {
	if t.entries == nil {
		t.entries = make(map[sessionKey]timeWait)
	}
	for len(t.order) > 0 && (len(t.order) >= maxTimeWait || t.entries[t.order[0]].until <= now) {
		oldest := t.order[0]
		delete(t.entries, oldest)
		if t.latest[oldest.conv] == oldest {
			delete(t.latest, oldest.conv)
		}
		t.order = t.order[1:]
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

func (t *timeWaitTable) holds(key sessionKey) bool {
	_, ok := t.entries[key]
	return ok
}

// at returns the grave of key, if there is one at that time.
func (t *timeWaitTable) at(key sessionKey, now time.Duration) (timeWait, bool) {
	tw, ok := t.entries[key]
	return tw, ok && now < tw.until
}

// elsewhere returns the grave of a session of that conversation id with a peer
// that has signals, whatever its address was.
func (t *timeWaitTable) atAnyAddress(conv uint32, now time.Duration) (timeWait, bool) {
	return t.at(t.latest[conv], now)
}

// timeWaitState returns what is to be remembered of the session.
func (c *Conn) timeWaitState() timeWait {
	l := &c.hs
	tw := timeWait{una: c.kcp.recvNext(), numbers: c.in.numbers}
	if l.kind == peerExtended {
		tw.token, tw.own = l.peerToken, l.token
		tw.aborted = c.closing.err != nil && c.closing.err != ErrPeerClosed
	}
	return tw
}

// timeWaitForLocked returns the grave that a packet of no session belongs to. With an
// authenticating cipher that may be one of a peer that has changed its address
// since: it still has to learn how its session has ended. mu is held.
func (e *Endpoint) timeWaitForLocked(key sessionKey, f initialPacket, now time.Duration) (timeWait, bool) {
	tw, ok := e.table.timeWaits.at(key, now)
	if !ok && e.protection.authentic && f.hello.code == 0 {
		tw, ok = e.table.timeWaits.atAnyAddress(key.conv, now)
	}
	return tw, ok
}

// replyInTimeWaitLocked answers a packet of an ended session: what it asks for is
// acknowledged, or the peer is told that the session was broken off. A peer
// that knows no signals must not get anything; it would take it for the
// beginning of a new session.
func (e *Endpoint) replyInTimeWaitLocked(tw timeWait, key sessionKey, d *udp.Datagram, f initialPacket, p *inPacket) {
	h := header{conv: key.conv, una: tw.una}
	reply := func(s ...signal) {
		if e.mayReplyLocked(&e.replies.budget, replyRate) {
			e.putNumberedLocked(d, tw.numbers.sender(), h, s...)
		}
	}
	switch {
	case !tw.numbers.of(p):
		// Recorded, and sent again.
	case tw.token == 0 || f.hello.code != 0 || !f.data && f.request.code == 0:
		// Two graves that answered each other would never stop.
	case tw.aborted:
		reply(signal{sigAbort, tw.token, 0})
	case f.request.code == sigPing && e.protection.authentic:
		reply(f.request.answer(), signal{sigToken, tw.token, tw.own})
	case f.request.code != 0:
		reply(f.request.answer())
	case f.data:
		reply(infoSignal()) // for its una
	}
}
