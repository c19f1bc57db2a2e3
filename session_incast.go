package kcp

// sending is what a session's share of its socket's buffer depends on.
type sending struct {
	epoch  uint32    // epoch of incast in which data last arrived
	packet [2]uint16 // largest packets with data, in that epoch and before; bytes
}

// takeShare counts the session among those whose peers are sending, and bounds
// the window that it advertises by its share of the socket buffer. packets are
// those of a batch, some of them with data. The reader of the socket calls it.
func (c *Conn) takeShare(packets []routedPacket, i *incast) {
	s := &c.in.sending
	if s.epoch != i.epoch {
		s.epoch = i.epoch
		s.packet = [2]uint16{0, s.packet[0]}
		i.senders++
	}
	for j := range packets {
		s.packet[0] = max(s.packet[0], uint16(packets[j].size))
	}
	c.limitWindow(i, int(max(s.packet[0], s.packet[1])))
}

// limitFirstWindow bounds the window that the session advertises before its peer
// has sent data, if there are other senders.
func (c *Conn) limitFirstWindow(i *incast) {
	if c.kcp.counts().PacketsSent == 0 {
		c.limitWindow(i, c.mtu())
	}
}

// limitWindow bounds the window by the session's share. packet is the size of
// the peer's packets in bytes.
func (c *Conn) limitWindow(i *incast, packet int) {
	window := i.window(packet)
	if window > 0 && c.hs.kind == peerExtended && c.kcp.counts().PacketsSent == 0 {
		// In message mode such a peer takes the largest window that it has seen
		// for the limit of its messages.
		window = max(window, minRcvWnd)
	}
	c.kcp.limitWindow(window)
}
