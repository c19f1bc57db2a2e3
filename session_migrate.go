package kcp

import (
	"time"

	"github.com/arqnet/kcp/internal/udp"
)

// Moving peers: a peer whose address has changed, because its NAT has
// forgotten it or it is on another network, goes on with its session. Two
// things must be shown first: that the packet is the peer's, which only an
// authenticating cipher shows, and that the peer gets what is sent to the new
// address, which it shows by answering a challenge from there (RFC 9000 §8.2
// has the same rule, and why).

// take deals with a packet from an unknown address: nothing in it counts before
// the peer has shown that it is there. It returns the session that has moved to
// that address.
func (found *migratingSessions) take(d *udp.Datagram, p *inPacket, now time.Duration) *Conn {
	// A packet number tells which session it is. A session that the peer has given
	// up for another, because it moved while it said HELLO, knows no better.
	for _, numbered := range []bool{true, false} {
		for _, c := range found {
			if c == nil {
				break
			}
			if mine, moved := c.packetFromNewAddress(d, p, numbered, now); moved {
				return c
			} else if mine {
				return nil
			}
		}
	}
	found[0].ep.counters.dropReplay.Add(1)
	return nil
}

// packetFromNewAddress takes a packet from an address that is not the peer's. mine is
// true if it is one of this session, and not of before; moved if it answers the
// challenge of the address, and the session has moved there.
func (c *Conn) packetFromNewAddress(d *udp.Datagram, p *inPacket, numbered bool, now time.Duration) (mine, moved bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing.state == stateEnded || c.hs.kind != peerExtended || !c.fresh(p, false) {
		return false, false
	}
	if c.in.numbers.numbered(p) != numbered {
		return false, false
	}
	if c.hs.unvalidated.Load() && !numbered {
		return false, false // it need not have come from who has got our WELCOME
	}
	to := source{d.Addr, d.Peer}
	switch answered, aborted := c.answersChallenge(p, to, now); {
	case aborted:
		c.closing.ending = ErrReset
		c.finishStep(now)
		return true, false
	case answered:
		moved = c.migrateTo(to)
		if moved {
			c.addressValidated()
		}
		return true, moved
	}
	c.ep.mu.Lock()
	defer c.ep.mu.Unlock()
	ask := c.challengeOfLocked(to, now)
	if (ask.sn != c.path.challenged || now-c.path.challengedAt >= challengeEvery) && c.ep.mayReplyLocked(&c.ep.replies.budget, replyRate) {
		c.path.challenged, c.path.challengedAt = ask.sn, now
		c.ep.putNumberedLocked(d, c.in.numbers.sender(), c.kcp.answerHeader(), ask)
	}
	return true, false
}

// challengeEvery is the least time between two challenges of one address.
const challengeEvery = 50 * time.Millisecond

// challengeOfLocked returns the question that is sent to an address. It is made of the
// address and a secret, as a cookie is, so that nothing need be kept for
// addresses that the peer is not at, however many they are. It is good for 10 to
// 20 seconds, and for one move. Endpoint.mu is held.
func (c *Conn) challengeOfLocked(to source, at time.Duration) signal {
	key := makeKey(to.addr, to.peer, c.path.key.conv)
	period := ^int64(at / cookieTime) // not one of a cookie
	s := c.ep.replies.cookies.at(key, c.hs.token+c.path.migrations, period)
	return signal{sigPing, s.sn, s.ts}
}

// answersChallenge reports whether a packet answers the challenge of the address
// it comes from, and shows the session's tokens besides, which another holder of
// the key does not know. Or it says that the peer has broken the session off:
// then it does not matter where the peer is.
func (c *Conn) answersChallenge(p *inPacket, from source, now time.Duration) (answered, aborted bool) {
	var answers [2]signal
	l, shown := &c.hs, false
	ok := c.eachSignal(p, func(s signal) {
		switch {
		case s.code == sigPing|sigAnswer:
			if answers[0].code == 0 {
				answers = c.challengeAnswers(from, now)
			}
			answered = answered || s == answers[0] || s == answers[1]
		case s == signal{sigToken, l.token, l.peerToken}:
			shown = true
		case s.code == sigAbort && s.sn == l.token:
			aborted = true
		}
	})
	return ok && answered && shown, ok && aborted
}

// challengeAnswers returns the answers to what was sent to an address lately.
func (c *Conn) challengeAnswers(to source, now time.Duration) [2]signal {
	c.ep.mu.Lock()
	defer c.ep.mu.Unlock()
	return [2]signal{c.challengeOfLocked(to, now).answer(), c.challengeOfLocked(to, now-cookieTime).answer()}
}

// migrateTo files the session under a new address. It is false where that is taken.
func (c *Conn) migrateTo(to source) bool {
	if !c.ep.rekey(c, makeKey(to.addr, to.peer, c.path.key.conv)) {
		return false
	}
	c.path.remote = to.netAddr()
	// What was measured, was measured on another path (RFC 9000 §9.4).
	c.kcp.SetCongestionControl(c.ep.config.CongestionControl())
	c.restartMTUSearch()
	c.path.migrations++
	return true
}

// origin returns where the peer is. Conn.mu is held.
func (c *Conn) origin() source {
	o := source{addr: c.path.key.addr}
	if c.path.key.peer != "" {
		o.peer = c.path.remote
	}
	return o
}
