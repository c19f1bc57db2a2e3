package session

import (
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/incast"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/opening"
)

// What a session does against incast: many senders at once overrun the socket's
// receive buffer, although each of them keeps to its window. The session advertises
// the window that package incast gives it.

// SocketIncast is what one socket does against incast. Its present reader uses it,
// also from Conn.input; Turns has a lock, which is taken after Conn.mu.
type SocketIncast = incast.Socket[Session]

// Sender returns what the share of c depends on. Conn.mu guards it, except its turn.
func (c *Session) Sender() *incast.Sender { return &c.in.sending }

// takeShare counts what the peer sends, and bounds the window that the session
// advertises by its share of the socket buffer. packets are a batch's, with
// so many segments that had not arrived before. A peer of which all has come before
// in an epoch is not a sender. The reader of the socket calls it.
func (c *Session) takeShare(packets []InPacket, segments int, i *SocketIncast, now time.Duration) {
	s := &c.in.sending
	s.Begin(&i.Budget)
	if segments == 0 && s.Light == 0 {
		return
	}
	bytes := 0
	for j := range packets {
		bytes += s.Packet(packets[j].Size)
	}
	s.Segments(segments)
	validated, several := !c.hs.unvalidated.Load(), c.shared.Several()
	if several {
		i.Offered(s, bytes, validated)
	}
	c.limitWindow(i.Share(c, segments, validated, several, now), false)
}

// limitFirstWindow bounds the window that the session advertises before its peer
// has sent data, if there are other senders.
func (c *Session) limitFirstWindow(i *SocketIncast) {
	c.limitWindow(incast.Grant{Window: i.Window(c.mtu(), true, !c.hs.unvalidated.Load())}, false)
}

// limitWindow bounds the window by what the session may have sent to it. With tell the
// next flush tells the peer.
func (c *Session) limitWindow(g incast.Grant, tell bool) {
	if (g.Window > 0 || g.Shut) && c.hs.Peer >= opening.Extended && c.kcp.Counts().PacketsSent == 0 {
		// In message mode such a peer takes the largest window that it has seen
		// for the limit of its messages.
		g = incast.Grant{Window: max(g.Window, machine.MinRcvWnd)}
	}
	c.kcp.LimitWindow(g.Window, g.Shut, tell)
}

// changeShard records that the peer's packets arrive at another socket now. If
// the window depended on turns of senders at the old one, the peer is to be told
// another, and changeShard returns true.
func (c *Session) changeShard(shard uint16) bool {
	took := c.host.Incast(int(c.path.shard)).Forget(c)
	c.path.shard = shard
	c.timers.heldSince = 0 // what time-outs wait for arrives at the old one
	c.kcp.Sender().HoldTimeouts(false)
	if took {
		i := c.host.Incast(int(shard))
		c.limitWindow(incast.Grant{Window: i.Window(c.in.sending.PacketSize(), false, !c.hs.unvalidated.Load())}, true)
	}
	return took
}

// TakeGrant tells the peer a window. If the session has ended, it gives up its turn, and
// returns false.
func (c *Session) TakeGrant(g incast.Grant, now time.Duration, woken bool) bool {
	if c.closing.Phase >= closing.Ended {
		c.leaveTurn()
		return false
	}
	c.step.woken = woken
	c.setClock(now)
	c.limitWindow(g, true)
	c.flushDue(now)
	c.finishStep(now)
	return true
}

// leaveTurn ends the session's turn, if it has one.
func (c *Session) leaveTurn() { c.host.Incast(int(c.path.shard)).Leave(c) }
