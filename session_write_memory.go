package kcp

// Memory of write buffers (compare tcp_mem and sk_forward_alloc of Linux). A
// write buffer of the default size lets a program run far ahead of its peer. With
// thousands of sessions that write, that would be gigabytes. So once the sessions
// of an endpoint together hold much, each has room for what its path needs, and
// little more.
//
// What waits in streams is bounded for all streams of a session together, too.
// Half of that room is for anything. The other half is for what the peer has given
// credit for: that leaves as the session goes on. So streams that nobody reads do
// not keep the others from writing.

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
	// messageBytesQueued is what a waiting message of a stream takes in memory
	// beside its payload.
	messageBytesQueued = 144
	// mostCreditNeeded is the most credit, in bytes, that a message waits for
	// to be queued beyond the half for anything. The receiver gives a message
	// that is begun the rest of its buffer.
	mostCreditNeeded = initialCredit / 2
)

// roomClass is which part of the room of a session a write waits for.
type roomClass uint8

const (
	roomForAny    roomClass = iota // the half for anything
	roomForCredit                  // the half for what there is credit for
	roomClasses
)

// accountWrites updates endpointLoad.written, which is exact to within a grain
// of each session, either way.
func (c *Conn) accountWrites() {
	used, old := c.writeUsed(), int(c.io.writeGrains)
	if c.streams != nil {
		used += c.streams.queued
	}
	if c.closing.retired {
		used = 0 // what was not delivered is garbage with the session
	}
	grains := used / writeGrain
	if grains <= old && grains+1 >= old && (used > 0 || old == 0) {
		return
	}
	c.ep.load.written.Add(int64(grains - old))
	c.io.writeGrains = uint32(grains)
}

// writeUsed returns how many bytes of the write buffer are in use.
func (c *Conn) writeUsed() int {
	return c.kcp.sendBytes() + c.kcp.WaitSend()*writeCostPerSegment
}

// scarceWriteBuffer returns the size in bytes of a write buffer that has the
// default size, while all together hold so much that memory is scarce. It is twice
// what may be in flight, within bounds (compare tcp_sndbuf_expand of Linux).
func (c *Conn) scarceWriteBuffer(all int64) int {
	flight := int64(c.kcp.sendWindow()) * int64(c.kcp.segmentPayload()+writeCostPerSegment)
	scarce := max(scarceWriteBuffer*writePressure/all, leastWriteBuffer)
	return int(min(max(2*flight, scarce), defaultWriteBuffer))
}

// sizeLocked returns how many bytes of memory may wait in all streams of the
// session. That is the size of a write buffer, or of one of a stream if it is
// larger, and was set or memory is not short.
func (t *streamTable) sizeLocked() int {
	size, ofOne := t.conn.writeBuffer(), t.conn.ep.config.StreamWriteBuffer
	if ofOne != defaultStreamWrite || t.conn.ep.load.written.Load() <= writePressure {
		return max(size, ofOne)
	}
	return size
}

// waitingLocked adds n, which may be negative, to the memory of what waits.
func (s *Stream) waitingLocked(n int) {
	t := s.conn.streams
	s.out.memory += n
	t.queued += n
	if s.out.ready {
		t.ready += n
	}
	if n < 0 {
		t.wakeWriterLocked()
	}
}

// creditedLocked takes note whether the stream has credit for some of what
// waits.
func (s *Stream) creditedLocked(ready bool) {
	if ready == s.out.ready {
		return
	}
	t := s.conn.streams
	if s.out.ready = ready; ready {
		t.ready += s.out.memory
		return
	}
	t.ready -= s.out.memory
	t.wakeWriterLocked()
}

// roomOfLocked returns how many bytes of a half are free. What has credit is
// not kept out by what has none, however much that is: the room may have been
// larger.
func (t *streamTable) roomOfLocked(class roomClass) int {
	if class == roomForCredit {
		return t.sizeLocked()/2 - t.ready
	}
	return t.sizeLocked()/2 - t.queued
}

// roomLocked returns how many bytes of a message of n may be written to s now.
// If that is not positive, it returns what there has to be room for.
func (s *Stream) roomLocked(n int) (room int, class roomClass) {
	t := s.conn.streams
	own := s.conn.ep.config.StreamWriteBuffer - s.out.queued
	if own <= 0 || t.roomOfLocked(roomForAny) > 0 {
		return own, roomForAny
	}
	credit := s.out.credit() - s.out.queued
	if credit < max(min(n, own, mostCreditNeeded), 1) {
		return 0, roomForAny
	}
	return min(own, credit, t.roomOfLocked(roomForCredit)), roomForCredit
}

// awaitRoomLocked waits until there may be room for s: in the session, or in
// the stream itself, which sending makes.
func (s *Stream) awaitRoomLocked(class roomClass) {
	t := s.conn.streams
	if t.roomOfLocked(class) > 0 {
		s.canWrite.block(rankStream + 2*uint64(s.id) + 1) // the stream itself is full
		return
	}
	waiting := &t.writers[class]
	e := waiting.PushBack(s)
	s.canWrite.block(rankStream + 2*uint64(s.id) + 1)
	waiting.Remove(e)    // unless wakeWriterLocked has
	t.wakeWriterLocked() // the next in turn, if there is room for both
}

// wakeWriterLocked wakes the call that has waited longest for room of the
// session, if there is some.
func (t *streamTable) wakeWriterLocked() {
	for class := range roomClasses {
		waiting := &t.writers[class]
		if first := waiting.Front(); first != nil && t.roomOfLocked(class) > 0 {
			waiting.Remove(first)
			first.Value.(*Stream).canWrite.Broadcast()
			return
		}
	}
}
