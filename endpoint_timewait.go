package kcp

import (
	"time"

	"github.com/arqnet/kcp/internal/udp"
)

// graveTime is how long stragglers of an ended session are recognised, and
// maxGraves how many ended sessions are remembered.
const (
	graveTime = 60 * time.Second
	maxGraves = 8192
)

// grave is what remains of an ended session: what it takes to answer a peer
// that has not heard of the end.
type grave struct {
	until   time.Duration
	una     seq    // all of the peer's data below has arrived
	token   uint32 // what the peer believes; 0: it is to be told nothing
	own     uint32 // ours
	aborted bool
	numbers *packetNumbers // of the session, which are the endpoint's now
}

// graveyard remembers ended sessions for a while, in bounded memory.
type graveyard struct {
	graves map[sessionKey]grave
	order  []sessionKey          // oldest first
	moved  map[uint32]sessionKey // of each conversation id the latest whose peer has signals
	used   convHistory
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

func (y *graveyard) bury(key sessionKey, g grave, now time.Duration) {
	if y.graves == nil {
		y.graves = make(map[sessionKey]grave)
	}
	for len(y.order) > 0 && (len(y.order) >= maxGraves || y.graves[y.order[0]].until <= now) {
		oldest := y.order[0]
		delete(y.graves, oldest)
		if y.moved[oldest.conv] == oldest {
			delete(y.moved, oldest.conv)
		}
		y.order = y.order[1:]
	}
	if _, again := y.graves[key]; !again {
		y.order = append(y.order, key)
	}
	g.until = now + graveTime
	y.graves[key] = g
	if g.token != 0 {
		if y.moved == nil {
			y.moved = make(map[uint32]sessionKey)
		}
		y.moved[key.conv] = key
	}
}

func (y *graveyard) holds(key sessionKey) bool {
	_, ok := y.graves[key]
	return ok
}

// at returns the grave of key, if there is one at that time.
func (y *graveyard) at(key sessionKey, now time.Duration) (grave, bool) {
	g, ok := y.graves[key]
	return g, ok && now < g.until
}

// elsewhere returns the grave of a session of that conversation id with a peer
// that has signals, whatever its address was.
func (y *graveyard) elsewhere(conv uint32, now time.Duration) (grave, bool) {
	return y.at(y.moved[conv], now)
}

// graveOf returns what is to be remembered of the session.
func (c *Conn) graveOf() grave {
	l := &c.life
	g := grave{una: c.kcp.recvNext(), numbers: c.numbers}
	if l.kind == peerOurs {
		g.token, g.own = l.peerToken, l.token
		g.aborted = c.err != nil && c.err != ErrPeerClosed
	}
	return g
}

// graveFor returns the grave that a packet of no session belongs to. With an
// authenticating cipher that may be one of a peer that has changed its address
// since: it still has to learn how its session has ended. mu is held.
func (e *Endpoint) graveFor(key sessionKey, f first, now time.Duration) (grave, bool) {
	g, ok := e.graves.at(key, now)
	if !ok && e.authentic && f.hello.code == 0 {
		g, ok = e.graves.elsewhere(key.conv, now)
	}
	return g, ok
}

// replyFromGrave answers a packet of an ended session: what it asks for is
// acknowledged, or the peer is told that the session was broken off. A peer
// that knows no signals must not get anything; it would take it for the
// beginning of a new session.
func (e *Endpoint) replyFromGrave(g grave, key sessionKey, d *udp.Datagram, f first, p *opened) {
	h := header{conv: key.conv, una: g.una}
	tell := func(s ...signal) {
		if e.mayReply(&e.replies, replyRate) {
			e.putNumbered(d, g.numbers.sender(), h, s...)
		}
	}
	switch {
	case !g.numbers.of(p):
		// Recorded, and sent again.
	case g.token == 0 || f.hello.code != 0 || !f.data && f.request.code == 0:
		// Two graves that answered each other would never stop.
	case g.aborted:
		tell(signal{sigAbort, g.token, 0})
	case f.request.code == sigPing && e.authentic:
		tell(f.request.answer(), signal{sigToken, g.token, g.own})
	case f.request.code != 0:
		tell(f.request.answer())
	case f.data:
		tell(infoSignal()) // for its una
	}
}
