package kcp

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/internal/shed"
)

// Memory pressure (compare Linux tcp_mem). Config.MaxBuffered bounds the memory
// that all sessions hold because of their peers. Beyond it, a session goes on
// unimpeded that holds no more than its share, or than what its path has
// carried lately. One that holds more accepts only what can be read at once,
// until it holds less. Sessions are ended (load shedding) that hold most for
// each byte that has arrived or was read lately, whatever they hold: first those
// that hold more than an equal share, and others only if that does not suffice.

const (
	// pressurePause is the time between two scans of all sessions, unless some
	// are to be ended.
	pressurePause = 100 * time.Millisecond
	// scanned and mostShed are how many sessions are looked at, and how many
	// are ended at most, after one batch of packets.
	scanned  = 1024
	mostShed = 16
	// anyRatio is a ratio below all others, as a power of two.
	anyRatio = -64
	// never is a time after all scans.
	never = math.MaxInt64
)

// pressure is the state of an endpoint's memory pressure, besides endpointLoad.share.
type pressure struct {
	next atomic.Int64 // time of the next part of a scan, as time.Duration since the epoch; never: it is under way
	scan *scan        // of the reader that has set next to never; nil: none has begun
}

// scan is a scan of all sessions, of which each part looks at some of them.
type scan struct {
	at      int         // slot of the next session
	holders int64       // sessions that hold more than leastShare
	rest    int64       // bytes that the others hold
	census  shed.Census // of the sessions before at, but for those that were ended
	line    shed.Rank   // sessions of this rank or above are ended; shed.None: not known yet, or none
}

// leastRatio returns how much the sessions hold that may be ended now, for each
// byte that has arrived or was read lately, as a power of two. Beyond MaxBuffered that is
// sixteen times as much, and at least 16 KiB: what nothing has arrived for in
// about ten seconds. A live peer has retransmitted what is missing by then,
// which is accepted in any case. Further on it is four times as much, then half
// as much, and at last anything.
func (e *Endpoint) leastRatio() (exponent int) {
	switch over, margin := e.overload(); {
	case over <= margin:
		return 4
	case over <= 2*margin:
		return 2
	case over <= 4*margin:
		return -1
	}
	return anyRatio
}

// relieve scans sessions while memory is short, and ends some if needed. The
// readers call it after each batch, with no lock held.
func (e *Endpoint) relieve(now time.Duration) {
	p := &e.pressure
	over := e.overMemoryLimit()
	next := p.next.Load()
	if over && int64(now) < next || next == never || !p.next.CompareAndSwap(next, never) {
		return
	}
	if !over {
		e.load.share.Store(0)
		p.scan = nil
		p.next.Store(next)
		return
	}
	var heavy [mostShed]*Conn
	n, done := e.weigh(now, &heavy)
	for _, c := range heavy[:n] {
		if e.overMemoryLimit() && c.shedMemory() {
			e.counters.endedForMemory.Add(1)
			e.warn("session ended under memory pressure", ErrMemoryPressure)
		}
	}
	pause := time.Duration(0)
	if done && p.scan.line == shed.None {
		pause = pressurePause
	}
	p.next.Store(int64(now + pause))
}

// weigh does a part of a scan. It puts sessions to be ended into heavy, and
// returns how many. At the end of the scan, which it reports, it sets the share
// of a session (max-min fairness): what those leave of MaxBuffered that hold no
// more than leastShare is divided by the number of the others. It sets the line
// of the next scan, too, so that those above it hold enough for the rest to fit
// into MaxBuffered.
func (e *Endpoint) weigh(now time.Duration, heavy *[mostShed]*Conn) (n int, done bool) {
	p := &e.pressure
	if p.scan == nil {
		p.scan = &scan{line: shed.None}
	}
	s, share, ratio := p.scan, max(e.load.share.Load(), leastShare), e.leastRatio()
	e.mu.RLock()
	conns, last := e.table.Part(s.at, scanned)
	looked := 0
	for ; looked < len(conns) && n < len(heavy); looked++ {
		c := conns[looked]
		if c == nil {
			continue
		}
		held, lately := c.weight(now)
		switch rank := shed.Of(held, lately, held > share); {
		case held == 0:
		case rank >= s.line && rank.Holds(ratio):
			heavy[n] = c
			n++
		default:
			s.census.Add(rank, held)
			if held > leastShare {
				s.holders++
			} else {
				s.rest += held
			}
		}
	}
	s.at += looked
	done = last && looked == len(conns)
	e.mu.RUnlock()
	if done {
		e.load.share.Store(max((int64(e.config.MaxBuffered)-s.rest)/max(s.holders, 1), leastShare))
		over, _ := e.overload()
		*s = scan{line: s.census.Line(over, ratio)}
	}
	return n, done
}
