package kcp

import (
	"sync/atomic"
	"time"
)

// holding is the account of the memory that a session holds because of its
// peer. It is written with Conn.mu held. The endpoint reads the atomics without
// it, and so needs no lock of a session to weigh all of them.
type holding struct {
	bytes atomic.Int64 // the session's part of endpointLoad.buffered, within accountGrain
	// moved holds a time and a flag. The time is when data was last read, last
	// arrived in order, or when the flag was last set: in milliseconds since
	// the epoch, rounded down to an even number. The flag is the lowest bit: the
	// session is stalled, as nothing can be read before a missing segment
	// arrives.
	moved atomic.Uint32
	mark  seq // advances with all that is read or arrives in order
}

// state returns how long no data has been read or arrived in order, and whether
// that is because an earlier segment is missing. It needs no lock.
func (h *holding) state(now time.Duration) (rest time.Duration, stalled bool) {
	moved := h.moved.Load()
	return time.Duration(clock(now)-moved&^1) * time.Millisecond, moved&1 != 0
}

// note updates moved and mark. It stores moved only if it changes.
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

// held returns the memory that the session holds because of its peer, in bytes.
func (c *Conn) held() int {
	n := c.kcp.Held()
	if c.in.datagrams != nil {
		n += c.in.datagrams.bytes
	}
	if c.in.decoder != nil {
		n += c.in.decoder.Stats().Held
	}
	if h := c.tlsHandshake(); h != nil {
		n += h.bytesHeld()
	}
	if numbers := c.in.numbers; numbers != nil && numbers.tls != nil && numbers.tls.secured != nil {
		n += numbers.tls.secured.bytes
	}
	if v := c.path.validation; v != nil && v.deferred != nil {
		n += cap(v.deferred.data)
	}
	if c.streams != nil {
		n += c.streams.held
	}
	return n
}

// accountGrain is by how many bytes holding.bytes may differ from held, while
// the session holds anything. So small messages that arrive and are read cost
// no write to the counter that all sessions share.
const accountGrain = 1 << 10

// account updates holding, and with it the endpoint's total. Those are exact
// for a session that was not offered to Accept, or whose peer's address is not
// validated.
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

// overShare reports whether all sessions together exceed Config.MaxBuffered and
// this one holds more than its share.
func (c *Conn) overShare() bool {
	if !c.ep.overMemoryLimit() {
		return false
	}
	share := c.ep.load.pressure.share.Load()
	return share == 0 || c.in.holding.bytes.Load() > share
}

// endForMemory locks c.mu, ends the session with ErrMemoryPressure, and
// releases what it holds.
func (c *Conn) endForMemory() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing.state == stateEnded {
		return
	}
	c.kcp.closeReceive()
	c.dropStreams(c.reason(ErrMemoryPressure))
	c.dropDecoder()
	if q := c.in.datagrams; q != nil {
		q.waiting, q.bytes = nil, 0
	}
	c.abort(ErrMemoryPressure)
}

// memoryPressure returns the memory pressure on the session, after Linux's
// tcp_mem.
func (c *Conn) memoryPressure() memoryPressure {
	switch {
	case c.hs.unvalidated.Load() && !c.hs.offered:
		return pressureReserved
	case c.overShare():
		return pressureHigh
	}
	return pressureNone
}
