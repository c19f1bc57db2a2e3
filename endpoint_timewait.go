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
	moved   map[uint32]sessionKey // of each conversation id the latest whose peer has signals
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

func (y *timeWaitTable) add(key sessionKey, g timeWait, now time.Duration) {
	if y.entries == nil {
		y.entries = make(map[sessionKey]timeWait)
	}
	for len(y.order) > 0 && (len(y.order) >= maxTimeWait || y.entries[y.order[0]].until <= now) {
		oldest := y.order[0]
		delete(y.entries, oldest)
		if y.moved[oldest.conv] == oldest {
			delete(y.moved, oldest.conv)
		}
		y.order = y.order[1:]
	}
	if _, again := y.entries[key]; !again {
		y.order = append(y.order, key)
	}
	g.until = now + timeWaitTime
	y.entries[key] = g
	if g.token != 0 {
		if y.moved == nil {
			y.moved = make(map[uint32]sessionKey)
		}
		y.moved[key.conv] = key
	}
}

func (y *timeWaitTable) holds(key sessionKey) bool {
	_, ok := y.entries[key]
	return ok
}

// at returns the grave of key, if there is one at that time.
func (y *timeWaitTable) at(key sessionKey, now time.Duration) (timeWait, bool) {
	g, ok := y.entries[key]
	return g, ok && now < g.until
}

// elsewhere returns the grave of a session of that conversation id with a peer
// that has signals, whatever its address was.
func (y *timeWaitTable) elsewhere(conv uint32, now time.Duration) (timeWait, bool) {
	return y.at(y.moved[conv], now)
}

// timeWaitState returns what is to be remembered of the session.
func (c *Conn) timeWaitState() timeWait {
	l := &c.hs
	g := timeWait{una: c.kcp.recvNext(), numbers: c.in.numbers}
	if l.kind == peerExtended {
		g.token, g.own = l.peerToken, l.token
		g.aborted = c.closing.err != nil && c.closing.err != ErrPeerClosed
	}
	return g
}

// timeWaitForLocked returns the grave that a packet of no session belongs to. With an
// authenticating cipher that may be one of a peer that has changed its address
// since: it still has to learn how its session has ended. mu is held.
func (e *Endpoint) timeWaitForLocked(key sessionKey, f initialPacket, now time.Duration) (timeWait, bool) {
	g, ok := e.table.timeWaits.at(key, now)
	if !ok && e.protection.authentic && f.hello.code == 0 {
		g, ok = e.table.timeWaits.elsewhere(key.conv, now)
	}
	return g, ok
}

// replyInTimeWaitLocked answers a packet of an ended session: what it asks for is
// acknowledged, or the peer is told that the session was broken off. A peer
// that knows no signals must not get anything; it would take it for the
// beginning of a new session.
func (e *Endpoint) replyInTimeWaitLocked(g timeWait, key sessionKey, d *udp.Datagram, f initialPacket, p *inPacket) {
	h := header{conv: key.conv, una: g.una}
	tell := func(s ...signal) {
		if e.mayReplyLocked(&e.replies.budget, replyRate) {
			e.putNumberedLocked(d, g.numbers.sender(), h, s...)
		}
	}
	switch {
	case !g.numbers.of(p):
		// Recorded, and sent again.
	case g.token == 0 || f.hello.code != 0 || !f.data && f.request.code == 0:
		// Two graves that answered each other would never stop.
	case g.aborted:
		tell(signal{sigAbort, g.token, 0})
	case f.request.code == sigPing && e.protection.authentic:
		tell(f.request.answer(), signal{sigToken, g.token, g.own})
	case f.request.code != 0:
		tell(f.request.answer())
	case f.data:
		tell(infoSignal()) // for its una
	}
}
