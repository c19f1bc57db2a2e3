package kcp

// sending is what a session's share of its socket's buffer depends on. It is
// small, as every session has it.
type sending struct {
	epoch  uint16 // epoch of incast in which data last arrived, modulo 2^16
	packet uint16 // largest packet with data lately, in bytes
}

// takeShare counts the session among those whose peers are sending, and bounds
// the window that it advertises by its share of the socket buffer. packets are
// those of a batch, some of them with data. The reader of the socket calls it.
func (c *Conn) takeShare(packets []routedPacket, i *incast) {
	s := &c.path.sending
	if epoch := uint16(i.epoch); s.epoch != epoch {
		s.epoch = epoch
		s.packet -= s.packet / 4 // so that it follows a peer whose packets become smaller
		i.senders++
	}
	for j := range packets {
		s.packet = max(s.packet, uint16(packets[j].size))
	}
	c.limitWindow(i, int(s.packet))
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
