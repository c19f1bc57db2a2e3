package kcp

// Memory of write buffers (compare tcp_mem and sk_forward_alloc of Linux). A
// write buffer of the default size lets a program run far ahead of its peer. With
// thousands of sessions that write, that would be gigabytes. So once the sessions
// of an endpoint together hold much, each has room for what its path needs, and
// little more.

const (
	// writeGrain is the unit of the account in bytes, so that few writes and
	// few acknowledgements touch the counter that all sessions share.
	writeGrain = 16 << 10
	// writePressure is what the sessions of an endpoint may hold before room
	// becomes scarce, in grains: 64 MiB.
	writePressure = 64 << 20 / writeGrain
	// scarceWriteBuffer is the write buffer when that is reached, in bytes, if
	// the path needs less. It becomes smaller as they hold more, but not than
	// leastWriteBuffer.
	scarceWriteBuffer = 256 << 10
	leastWriteBuffer  = 16 << 10
)

// accountWrites updates endpointLoad.written, which is exact to within a grain
// of each session, either way.
func (c *session) accountWrites() {
	used, old := c.kcp.load().memory, int(c.outgoing.grains)
	if c.streams != nil {
		used += c.streams.Queued()
	}
	if s := c.cappedOutput(); s != nil {
		used += s.waiting() * (c.shared.config.MTU + heldPacketBytes)
	}
	if c.closing.retired {
		used = 0 // what was not delivered is garbage with the session
	}
	grains := used / writeGrain
	if grains <= old && grains+1 >= old && (used > 0 || old == 0) {
		return
	}
	c.shared.load.written.Add(int64(grains - old))
	c.outgoing.grains = uint32(grains)
}

// scarceWriteBuffer returns the size in bytes of a write buffer that has the
// default size, while all together hold so much that memory is scarce. It is twice
// what may be in flight, within bounds (compare tcp_sndbuf_expand of Linux).
func (c *session) scarceWriteBuffer(all int64) int {
	flight := int64(c.kcp.snapshot().sendWindow) * int64(c.kcp.packetSize()-headerSize+writeCostPerSegment)
	scarce := max(scarceWriteBuffer*writePressure/all, leastWriteBuffer)
	return int(min(max(2*flight, scarce), defaultWriteBuffer))
}
