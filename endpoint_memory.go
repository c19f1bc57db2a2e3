package kcp

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/session"
)

// Memory pressure (compare Linux tcp_mem). Limits.MaxBuffered bounds the memory
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
	// never is a time after all scans.
	never = math.MaxInt64
)

// pressure is the state of an endpoint's memory pressure, besides endpointLoad.share.
type pressure struct {
	next atomic.Int64 // time of the next part of a scan, as time.Duration since the epoch; never: it is under way
	scan *fair.Scan   // of the reader that has set next to never; nil: none has begun
}

// relieve scans sessions while memory is short, and ends some if needed. The
// readers call it after each batch, with no lock held.
func (e *Endpoint) relieve(now time.Duration) {
	p := &e.pressure
	over := e.OverMemoryLimit()
	next := p.next.Load()
	if over && int64(now) < next || next == never || !p.next.CompareAndSwap(next, never) {
		return
	}
	if !over {
		e.Load.Share.Store(0)
		p.scan = nil
		p.next.Store(next)
		return
	}
	var heavy [mostShed]*Conn
	n, done := e.weigh(now, &heavy)
	for _, c := range heavy[:n] {
		if e.OverMemoryLimit() && c.shedMemory() {
			e.Counters.EndedForMemory.Add(1)
			e.warn("session ended under memory pressure", ErrMemoryPressure)
		}
	}
	pause := time.Duration(0)
	if done && p.scan.Nobody() {
		pause = pressurePause
	}
	p.next.Store(int64(now + pause))
}

// weigh does a part of a scan. It puts sessions to be ended into heavy, and returns how
// many. At the end of the scan, which it reports, it sets the share of a session.
func (e *Endpoint) weigh(now time.Duration, heavy *[mostShed]*Conn) (n int, done bool) {
	p := &e.pressure
	if p.scan == nil {
		p.scan = fair.NewScan(session.LeastShare)
	}
	over, margin := e.Overload()
	s, share, ratio := p.scan, max(e.Load.Share.Load(), session.LeastShare), fair.LeastRatio(over, margin)
	// Sessions that anybody may have opened do not take the memory of others.
	floods := e.Load.HalfOpenMemory() > int64(e.config.Limits.MaxBuffered)/4
	e.mu.RLock()
	conns, last := e.table.Part(s.At, scanned)
	looked := 0
	for ; looked < len(conns) && n < len(heavy); looked++ {
		c := conns[looked]
		if c == nil {
			continue
		}
		if held, lately := c.session.Weight(now); floods && c.session.HalfOpen() || s.Pays(held, lately, share, ratio) {
			heavy[n] = c
			n++
		}
	}
	s.Passed(looked)
	done = last && looked == len(conns)
	e.mu.RUnlock()
	if done {
		over, _ = e.Overload()
		e.Load.Share.Store(s.End(int64(e.config.Limits.MaxBuffered), over, ratio))
	}
	return n, done
}
