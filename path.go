package kcp

import (
	"net"
	"time"

	"github.com/arqnet/kcp/internal/udp"
)

// Moving peers: a peer whose address has changed, because its NAT has
// forgotten it or it is on another network, goes on with its session. Two
// things must be shown first: that the packet is the peer's, which only an
// authenticating cipher shows, and that the peer gets what is sent to the new
// address, which it shows by answering a challenge from there (RFC 9000 §8.2
// has the same rule, and why).

// challenge is the question sent to an address that the peer may have moved to.
type challenge struct {
	ask signal
	to  origin
	at  time.Duration // 0: none
}

// sentTo reports whether ch was sent to an address.
func (ch *challenge) sentTo(a origin) bool {
	return ch != nil && ch.at > 0 && ch.to.addr == a.addr && sameAddr(ch.to.peer, a.peer)
}

// challengeEvery is the least time between challenges.
const challengeEvery = 50 * time.Millisecond

// moving returns the session that a packet from an unknown address belongs to,
// where its peer may move.
func (e *Endpoint) moving(key sessionKey, kind openedKind) *Conn {
	if !e.authentic || kind == parityPacket || kind == datagramPacket {
		return nil
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	c := e.byConv[key.conv]
	if c == nil || !c.greeted.Load() {
		return nil
	}
	return c
}

// suspectMove challenges the address that an authentic packet has come from.
func (c *Conn) suspectMove(d *udp.Datagram, now time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == stateEnded || c.life.kind != peerOurs || c.unproven.Load() {
		return
	}
	if c.challenge == nil {
		c.challenge = new(challenge)
	}
	ch := c.challenge
	if ch.at > 0 && now-ch.at < challengeEvery {
		return
	}
	if to := (origin{d.Addr, d.Peer}); !ch.sentTo(to) {
		*ch = challenge{ask: signal{sigPing, randomConv(), randomConv()}, to: to}
	}
	ch.at = now
	h := header{conv: c.key.conv, wnd: c.kcp.wndUnused(), una: c.kcp.rcvNxt}
	c.ep.mu.Lock()
	defer c.ep.mu.Unlock()
	c.ep.reply(d, h, ch.ask)
}

func sameAddr(a, b net.Addr) bool {
	return a == nil && b == nil || a != nil && b != nil && a.String() == b.String()
}

// pathAnswered moves the session, if s answers the challenge from where that
// was sent to.
func (c *Conn) pathAnswered(s signal) {
	ch := c.challenge
	if !c.challenged || s != ch.ask.answer() {
		return
	}
	key := makeKey(ch.to.addr, ch.to.peer, c.key.conv)
	if !c.ep.rekey(c, key) {
		return
	}
	c.remote, c.peer = ch.to.netAddr(), ch.to.peer
	c.challenge, c.challenged = nil, false
	// What was measured, was measured on another path (RFC 9000 §9.4).
	c.kcp.SetCongestionControl(c.ep.config.CongestionControl())
	c.restartDiscovery()
	c.moves++
}

// rekey files the session under a new address. It is false where there is
// another session of that key.
func (e *Endpoint) rekey(c *Conn, key sessionKey) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sessions[c.key] != c || e.sessions[key] != nil {
		return false
	}
	e.exit(c)
	c.coded = false
	c.key.addr, c.key.peer = key.addr, key.peer // conv stays, and is read without a lock
	e.enter(c)
	return true
}
