package kcp

import (
	"sync/atomic"
	"time"
)

// holding is what a session holds because of its peer. It is written under
// Conn.mu.
type holding struct {
	bytes atomic.Int64 // part of Endpoint.buffered
	// moved is when something was last read, or came in order, or stalled became
	// true: clock, without its lowest bit. That is stalled: there is nothing to
	// read, as something before it is missing.
	moved atomic.Uint32
	mark  seq // grows with whatever is read or comes in order
}

// state returns for how long nothing has moved, and whether that is because
// something is missing.
func (h *holding) state(now time.Duration) (rest time.Duration, stalled bool) {
	moved := h.moved.Load()
	return time.Duration(clock(now)-moved&^1) * time.Millisecond, moved&1 != 0
}

// note brings moved up to date.
func (h *holding) note(mark seq, gap bool, now time.Duration) {
	stalled := uint32(0)
	if gap {
		stalled = 1
	}
	moved := h.moved.Load()
	if mark != h.mark || stalled > moved&1 {
		h.mark = mark
		if at := clock(now)&^1 | stalled; at != moved {
			h.moved.Store(at)
		}
	} else if stalled != moved&1 {
		h.moved.Store(moved&^1 | stalled)
	}
}

// held returns the bytes of memory that the session holds because of its peer.
func (c *Conn) held() int {
	n := c.kcp.Held()
	if c.in.datagrams != nil {
		n += c.in.datagrams.bytes
	}
	if c.in.decoder != nil {
		n += c.in.decoder.Stats().Held
	}
	return n
}

// accountGrain is by how much what the endpoint knows of a session's memory may
// differ from what the session holds, while it holds anything. Small messages
// that come and are read cost no write to what all sessions share.
const accountGrain = 1 << 10

// account tells the endpoint how much that is. Of a session that Accept has not
// returned, or whose peer's address is not validated, it is told exactly.
func (c *Conn) account() {
	h := &c.in.holding
	n, old := int64(c.held()), h.bytes.Load()
	if d := n - old; d != 0 && (n == 0 || d >= accountGrain || d <= -accountGrain || c.hs.unvalidated.Load() || !c.hs.offered) {
		c.ep.load.buffered.Add(d)
		h.bytes.Store(n)
	}
	mark, stalled := c.kcp.receiveProgress()
	h.note(mark, stalled, c.live.lastInput)
}

// overShare reports whether the session holds more than its share while memory
// is short.
func (c *Conn) overShare() bool {
	if !c.ep.overMemoryLimit() {
		return false
	}
	share := c.ep.load.pressure.share.Load()
	return share == 0 || c.in.holding.bytes.Load() > share
}

// endForMemory ends the session and gives up what it holds.
func (c *Conn) endForMemory() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing.state == stateEnded {
		return
	}
	c.kcp.closeReceive()
	c.in.decoder, c.in.datagrams = nil, nil
	c.abort(ErrMemoryPressure)
}

// memoryPressure returns how sparing with memory the session has to be.
func (c *Conn) memoryPressure() memoryPressure {
	switch {
	case c.hs.unvalidated.Load() && !c.hs.offered:
		return pressureReserved
	case c.overShare():
		return pressureHigh
	}
	return pressureNone
}
