package kcp

import "time"

// sending is what a session's share of its socket's buffer depends on. It is
// small, as every session has it.
type sending struct {
	epoch  uint8 // epoch of incast in which data last arrived, modulo 2^8
	packet uint8 // largest packet with data lately, in units of packetUnit
	light  uint8 // segments that have arrived in the epoch, at most incastLeast
	turn   uint8 // turnNone, turnWaits, or where its turn is; guarded by turns.mu
}

// packetUnit is the unit of sending.packet in bytes.
const packetUnit = 64

// packetSize returns the size of the peer's packets in bytes, rounded up.
func (s *sending) packetSize() int { return max(int(s.packet), 1) * packetUnit }

// takeShare counts the session among those whose peers are sending, and bounds
// the window that it advertises by its share of the socket buffer. packets are
// those of a batch, with so many segments. The reader of the socket calls it.
func (c *Conn) takeShare(packets []routedPacket, segments int, i *incast) {
	s := &c.path.sending
	if epoch := uint8(i.epoch); s.epoch != epoch {
		s.epoch, s.light = epoch, 0
		s.packet -= s.packet / 4 // so that it follows a peer whose packets become smaller
		i.senders++
	}
	for j := range packets {
		s.packet = max(s.packet, uint8(min((packets[j].size+packetUnit-1)/packetUnit, 255)))
	}
	s.light = uint8(min(int(s.light)+segments, incastLeast))
	if g, ok := i.turns.arrived(c, segments); ok {
		c.limitWindow(g)
		return
	}
	c.limitWindow(grant{window: i.window(s.packetSize())})
}

// limitFirstWindow bounds the window that the session advertises before its peer
// has sent data, if there are other senders.
func (c *Conn) limitFirstWindow(i *incast) {
	if c.kcp.counts().PacketsSent > 0 {
		return
	}
	c.limitWindow(grant{window: i.window(c.mtu())})
}

// limitWindow bounds the window by what the session may have sent to it.
func (c *Conn) limitWindow(g grant) {
	if g.window > 0 && c.hs.kind == peerExtended && c.kcp.counts().PacketsSent == 0 {
		// In message mode such a peer takes the largest window that it has seen
		// for the limit of its messages.
		g.window = max(g.window, minRcvWnd)
	}
	c.kcp.limitWindow(g.window, g.shut)
}

// takeGrant locks c.mu, and tells the peer a window.
func (c *Conn) takeGrant(g grant, now time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing.state == stateEnded {
		return
	}
	c.setClock(now)
	c.limitWindow(g)
	c.kcp.updateWindow()
	c.flushDue(now)
	c.finishStep(now)
	c.writePackets()
}
