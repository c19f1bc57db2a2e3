package kcp

import (
	"sync/atomic"
	"time"
)

// Pressure on memory. What all sessions hold for their peers is bounded by
// Config.MaxBuffered. Beyond it nobody pays for others: a session that holds no
// more than its share goes on as if nothing were, and those that hold more take
// only what can be read, until that is less. Sessions that hold what nobody can
// read for long are ended, and where it does not help, who holds most.

const (
	// leastShare is what any session may hold, whatever the others do.
	leastShare = 64 << 10
	// pressurePause is the time between two looks at all sessions.
	pressurePause = 100 * time.Millisecond
	// stallTime is how long a session may hold what nobody can read, for want of
	// what is missing before it, while memory is short: who wants it to be read
	// has sent that by then, and it is taken in any case.
	stallTime = 10 * time.Second
	// idleTime is after how long without anything being read, or coming in order,
	// a session is the first to go where that does not help.
	idleTime = time.Second
	// longestMessage is what the longest message of the reference takes at the
	// default MTU, in buffers: it has to be held before it can be read.
	longestMessage = 256 << 10
)

// pressure is what an endpoint does about want of memory.
type pressure struct {
	share atomic.Int64 // what a session may hold; 0 while memory is not short
	next  atomic.Int64 // when to look next, as time.Duration since the epoch
}

// overMemoryLimit reports whether all sessions together hold more than they may.
func (e *Endpoint) overMemoryLimit() bool {
	return e.load.buffered.Load() > int64(e.config.MaxBuffered)
}

// relieve looks, while memory is short, at what the sessions hold, and ends one
// if need be. The readers call it after a batch.
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
	victim, freed := e.weigh(now), int64(0)
	if victim != nil {
		freed = victim.in.holding.bytes.Load()
		victim.endForMemory()
		e.counters.endedForMemory.Add(1)
		e.warn("session ended for want of memory", ErrMemoryPressure)
	}
	if freed > 0 && e.overMemoryLimit() {
		p.next.Store(int64(now)) // the next one with the next batch
	}
}

// weigh sets the share of a session: MaxBuffered is shared out among those that
// hold more than the least. It returns the session to be ended, if there is one.
func (e *Endpoint) weigh(now time.Duration) *Conn {
	limit, holders := int64(e.config.MaxBuffered), int64(0)
	var all, idle, stalled heaviest
	e.mu.RLock()
	for _, c := range e.table.sessions {
		h := &c.in.holding
		n := h.bytes.Load()
		if n > leastShare {
			holders++
		}
		all.weigh(c, n)
		rest, gap := h.state(now)
		if rest >= idleTime {
			idle.weigh(c, n)
		}
		if rest >= stallTime && gap {
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

// heaviest is the session that holds most of those weighed.
type heaviest struct {
	conn  *Conn
	bytes int64
}

func (h *heaviest) weigh(c *Conn, bytes int64) {
	if bytes > h.bytes {
		h.conn, h.bytes = c, bytes
	}
}
