package kcp

import "time"

// sending is what a session's share of its socket's buffer depends on. It is
// small, as every session has it.
type sending struct {
	epoch  uint8 // epoch of incast in which data last arrived, modulo 2^8
	packet uint8 // largest packet with data lately, in units of packetUnit
	light  uint8 // new segments that have arrived in the epoch, at most incastLeast
	turn   uint8 // turnNone, turnWaits, or where its turn is; guarded by turns.mu
}

// packetUnit is the unit of sending.packet in bytes.
const packetUnit = 64

// packetSize returns the size of the peer's packets in bytes, rounded up.
func (s *sending) packetSize() int { return max(int(s.packet), 1) * packetUnit }

// takeShare counts what the peer sends, and bounds the window that the session
// advertises by its share of the socket buffer. packets are those of a batch, with
// so many segments that had not arrived before. A peer of which all has come before
// in an epoch is no sender. The reader of the socket calls
// it.
func (c *Conn) takeShare(packets []routedPacket, segments int, i *incastState, now time.Duration) {
	s := &c.path.sending
	if epoch := uint8(i.epoch); s.epoch != epoch {
		s.epoch, s.light, c.in.holding.offered = epoch, 0, 0
		s.packet -= s.packet / 4 // so that it follows a peer whose packets become smaller
	}
	if segments == 0 && s.light == 0 {
		return
	}
	bytes := 0
	for j := range packets {
		s.packet = max(s.packet, uint8(min((packets[j].size+packetUnit-1)/packetUnit, 255)))
		bytes += bufferBytes(packets[j].size)
	}
	validated := !c.hs.unvalidated.Load()
	s.light = uint8(min(int(s.light)+segments, incastLeast))
	if c.ep.load.sessions.Load() > 1 {
		c.in.holding.offered = i.offered(c.in.holding.offered, bytes, validated)
		if validated || i.level == 0 {
			if g, ok := i.turns.arrived(c, segments, now); ok {
				c.limitWindow(g)
				return
			}
		}
	}
	c.limitWindow(grant{window: i.window(s.packetSize(), s.light < incastLeast, validated)})
}

// limitFirstWindow bounds the window that the session advertises before its peer
// has sent data, if there are other senders.
func (c *Conn) limitFirstWindow(i *incastState) {
	if c.kcp.counts().PacketsSent > 0 {
		return
	}
	c.limitWindow(grant{window: i.window(c.mtu(), true, !c.hs.unvalidated.Load())})
}

// limitWindow bounds the window by what the session may have sent to it.
func (c *Conn) limitWindow(g grant) {
	if (g.window > 0 || g.shut) && c.hs.kind == peerExtended && c.kcp.counts().PacketsSent == 0 {
		// In message mode such a peer takes the largest window that it has seen
		// for the limit of its messages.
		g = grant{window: max(g.window, minRcvWnd)}
	}
	c.kcp.limitWindow(g.window, g.shut)
}

// changeShard takes note that the peer's packets arrive at another socket now. If
// the window depended on turns of senders at the old one, the peer is to be told
// another, and changeShard returns true.
func (c *Conn) changeShard(shard uint16) bool {
	shards := c.ep.socket.shards
	took := shards[c.path.shard].incast.turns.forget(c)
	c.path.shard = shard
	c.in.holding.offered = 0 // what it has sent counts at the old one
	if took {
		c.limitWindow(grant{window: shards[shard].incast.window(c.path.sending.packetSize(), false, !c.hs.unvalidated.Load())})
		c.kcp.updateWindow()
	}
	return took
}

// takeGrant locks c.mu, and tells the peer a window. If the session has ended, it
// gives up its turn, and returns false.
func (c *Conn) takeGrant(g grant, now time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing.state == stateEnded {
		c.leaveTurn()
		return false
	}
	c.setClock(now)
	c.limitWindow(g)
	c.kcp.updateWindow()
	c.flushDue(now)
	c.finishStep(now)
	c.writePackets()
	return true
}

// leaveTurn ends the session's turn, if it has one.
func (c *Conn) leaveTurn() { c.ep.socket.shards[c.path.shard].incast.turns.leave(c) }
