package kcp

import (
	"sync/atomic"
	"time"
)

// Memory pressure (compare Linux tcp_mem). Config.MaxBuffered bounds the memory
// that all sessions hold because of their peers. Beyond it, a session that
// holds no more than its share goes on unimpeded. A session that holds more
// accepts only what can be read at once, until it holds less. A session whose
// data has been unreadable for long is ended. If that does not suffice, so is
// the session that holds most.

const (
	// leastShare is the least share of a session, in bytes, whatever the others
	// hold.
	leastShare = 64 << 10
	// pressurePause is the time between two scans of all sessions, unless
	// ending a session did not relieve the pressure.
	pressurePause = 100 * time.Millisecond
	// stallTime is how long a session may hold unreadable data behind a gap
	// under memory pressure. A live peer has retransmitted the missing segment
	// by then, and that one is accepted in any case.
	stallTime = 10 * time.Second
	// idleTime is how long nothing may be read, nor arrive in order, before a
	// session is among the first to be ended when the limit is far exceeded.
	idleTime = time.Second
	// longestMessage is the size in buffers, in bytes, of the reference's
	// longest message at the default MTU. All of it has to be held before any
	// can be read.
	longestMessage = 256 << 10
)

// pressure is the state of an endpoint's memory pressure.
type pressure struct {
	share atomic.Int64 // bytes that a session may hold; 0: memory is not short, or not scanned yet
	next  atomic.Int64 // time of the next scan, as time.Duration since the epoch
}

// overMemoryLimit reports whether all sessions together hold more than
// Config.MaxBuffered.
func (e *Endpoint) overMemoryLimit() bool {
	return e.load.buffered.Load() > int64(e.config.MaxBuffered)
}

// relieve scans the sessions while memory is short, and ends one if needed. The
// readers call it after each batch, with no lock held.
func (e *Endpoint) relieve(now time.Duration) {
	p := &e.load.pressure
	if !e.overMemoryLimit() {
		if p.share.Load() != 0 {
			p.share.Store(0)
		}
		return
	}
	next := p.next.Load()
	if int64(now) < next || !p.next.CompareAndSwap(next, int64(now+pressurePause)) {
		return
	}
	chosen, freed := e.weigh(now), int64(0)
	if chosen != nil {
		freed = chosen.in.holding.bytes.Load()
		chosen.endForMemory()
		e.counters.endedForMemory.Add(1)
		e.warn("session ended for want of memory", ErrMemoryPressure)
	}
	if freed > 0 && e.overMemoryLimit() {
		p.next.Store(int64(now)) // scan again after the next batch
	}
}

// weigh updates the share of a session: MaxBuffered divided by the number of
// sessions that hold more than leastShare. It returns the session to end, or
// nil. Candidates are, in this order:
//
//   - the largest that has data behind a gap and no progress for stallTime;
//   - beyond 9/8 of the limit, the largest without progress for idleTime;
//   - beyond 9/8 of the limit, the largest of all, if it holds more than its
//     share and more than longestMessage;
//   - beyond twice the limit, the largest of all.
//
// The first two must hold more than unvalidatedBytes.
func (e *Endpoint) weigh(now time.Duration) *Conn {
	limit, holders := int64(e.config.MaxBuffered), int64(0)
	var all, idle, stalled heaviest
	e.mu.RLock()
	for _, c := range e.table.slots.conns {
		if c == nil {
			continue
		}
		h := &c.in.holding
		n := h.bytes.Load()
		if n > leastShare {
			holders++
		}
		all.weigh(c, n)
		idleFor, gap := h.state(now)
		if idleFor >= idleTime {
			idle.weigh(c, n)
		}
		if idleFor >= stallTime && gap {
			stalled.weigh(c, n)
		}
	}
	e.mu.RUnlock()
	share := max(limit/max(holders, 1), leastShare)
	e.load.pressure.share.Store(share)
	total := e.load.buffered.Load()
	switch {
	case stalled.bytes > unvalidatedBytes:
		return stalled.conn
	case total > limit+limit/8 && idle.bytes > unvalidatedBytes:
		return idle.conn
	case total > limit+limit/8 && all.bytes > max(share, longestMessage), total > 2*limit:
		return all.conn
	}
	return nil
}

// heaviest is the session that holds most of those that weigh was called for.
type heaviest struct {
	conn  *Conn
	bytes int64
}

// weigh notes c, which holds the given bytes, if no session before held more.
func (h *heaviest) weigh(c *Conn, bytes int64) {
	if bytes > h.bytes {
		h.conn, h.bytes = c, bytes
	}
}
