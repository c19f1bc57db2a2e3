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
	aborted bool
}

// graveyard remembers ended sessions for a while, in bounded memory.
type graveyard struct {
	graves map[sessionKey]grave
	order  []sessionKey // oldest first
}

func (y *graveyard) bury(key sessionKey, g grave, now time.Duration) {
	if y.graves == nil {
		y.graves = make(map[sessionKey]grave)
	}
	for len(y.order) > 0 && (len(y.order) >= maxGraves || y.graves[y.order[0]].until <= now) {
		delete(y.graves, y.order[0])
		y.order = y.order[1:]
	}
	if _, again := y.graves[key]; !again {
		y.order = append(y.order, key)
	}
	g.until = now + graveTime
	y.graves[key] = g
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

// graveOf returns what is to be remembered of the session.
func (c *Conn) graveOf() grave {
	l := &c.life
	g := grave{una: c.kcp.rcvNxt}
	if l.kind == peerOurs {
		g.token = l.peerToken
		g.aborted = c.err != nil && c.err != ErrPeerClosed
	}
	return g
}

// replyFromGrave answers a packet of an ended session: what it asks for is
// acknowledged, or the peer is told that the session was broken off. A peer
// that knows no signals must not get anything; it would take it for the
// beginning of a new session.
func (e *Endpoint) replyFromGrave(g grave, key sessionKey, d *udp.Datagram, f first) {
	h := header{conv: key.conv, una: g.una}
	switch {
	case g.token == 0 || f.hello.code != 0 || !f.data && f.request.code == 0:
		// Two graves that answered each other would never stop.
	case g.aborted:
		e.reply(d, h, signal{sigAbort, g.token, 0})
	case f.request.code != 0:
		e.reply(d, h, f.request.answer())
	case f.data:
		e.reply(d, h, infoSignal()) // for its una
	}
}
