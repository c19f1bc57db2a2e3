package kcp

import "sync/atomic"

// Memory of write buffers (compare tcp_mem and sk_forward_alloc of Linux). A
// write buffer of the default size lets a program run far ahead of its peer. With
// thousands of sessions that write, that would be gigabytes. So once the sessions
// of the program together hold much, each has room for what its path needs, and
// little more.

const (
	// writeGrain is the unit of the account in bytes, so that few writes and few
	// acknowledgements touch the counter that all sessions share.
	writeGrain = 64 << 10
	// writePressure is what all sessions may hold before room becomes scarce, in
	// grains: 64 MiB.
	writePressure = 64 << 20 / writeGrain
	// leastWriteBuffer is the write buffer under pressure, in bytes, if the path
	// needs less.
	leastWriteBuffer = 256 << 10
)

// writeMemory is what the write buffers of all sessions of the program hold, in
// grains. What is counted of a session is exact to within a grain, either way.
var writeMemory atomic.Int64

// accountWrites updates writeMemory.
func (c *Conn) accountWrites() {
	used, old := c.writeUsed(), int(c.io.writeGrains)
	if c.closing.retired {
		used = 0 // what was not delivered is garbage with the session
	}
	grains := used / writeGrain
	if grains <= old && grains+1 >= old && (used > 0 || old == 0) {
		return
	}
	writeMemory.Add(int64(grains - old))
	c.io.writeGrains = uint32(grains)
}

// writeUsed returns how many bytes of the write buffer are in use.
func (c *Conn) writeUsed() int {
	return c.kcp.sendBytes() + c.kcp.WaitSend()*writeCostPerSegment
}

// sharedWriteBuffer returns the size in bytes of a write buffer that has the
// default size. Under pressure it is twice what may be in flight, within bounds
// (compare tcp_sndbuf_expand of Linux).
func (c *Conn) sharedWriteBuffer() int {
	if writeMemory.Load() <= writePressure {
		return defaultWriteBuffer
	}
	flight := int64(c.kcp.sendWindow()) * int64(c.kcp.segmentPayload()+writeCostPerSegment)
	return int(min(max(2*flight, leastWriteBuffer), defaultWriteBuffer))
}
