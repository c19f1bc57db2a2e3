package wakeup

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Order puts goroutines that are woken at the same instant of virtual
// time in order, so that a run of a program can be repeated.
//
// In a bubble of testing/synctest the scheduler is what remains of chance:
// goroutines that run at the same instant run in any order, and at the same time
// on several processors. But time passes only when all of them are blocked. So
// goroutines that sleep for different times run one by one, each until it blocks.

// Rank is the place of a goroutine among those that come at the same instant. It
// must not depend on the scheduler. Lower ones are first, compared by Calls,
// Group and Member.
type Rank struct {
	// Calls is set for a goroutine of the application, whose own timers may be set
	// from when its turn was. Its turn is at an even nanosecond, and the turns of others
	// at an odd one: timers of whole microseconds do not meet with the latter.
	Calls         bool
	Group, Member uint64
}

// Order is the order of goroutines that share something. The zero value is ready
// for use. All methods are safe for concurrent use. Instants are in nanoseconds
// since 1970.
type Order struct {
	mu    sync.Mutex // guards the fields below
	queue []*turn    // that have no instant yet
	last  int64      // the latest instant of a turn
}

// turn is a goroutine that waits. Order.mu guards at.
type turn struct {
	Rank
	came int64
	at   int64 // when its turn is; 0: not known yet
}

// Wait returns some nanoseconds later, at an instant at which no other call
// returns. The caller then has until it blocks before the next call returns. It
// must not hold a lock that others may want at the same instant, as a goroutine
// that waits for a sync.Mutex keeps the time of a bubble from passing.
func (o *Order) Wait(r Rank) {
	t := &turn{Rank: r}
	o.mu.Lock()
	t.came = time.Now().UnixNano()
	o.queue = append(o.queue, t)
	o.mu.Unlock()
	time.Sleep(time.Nanosecond) // then all have come that come at the same instant
	o.mu.Lock()
	now := time.Now().UnixNano()
	if t.at == 0 {
		o.assign(now)
	}
	wait := t.at - now // not positive in real time, which keeps no order
	o.mu.Unlock()
	time.Sleep(time.Duration(wait))
}

// Ahead returns how far after now the latest turn is. Some nanoseconds are usual.
func (o *Order) Ahead(now time.Time) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return time.Duration(o.last - now.UnixNano())
}

// assign sets the instants of all that came before now. o.mu is held.
func (o *Order) assign(now int64) {
	slices.SortStableFunc(o.queue, func(a, b *turn) int {
		return cmp.Or(cmp.Compare(a.came, b.came), a.compare(b.Rank))
	})
	n := 0
	for ; n < len(o.queue) && o.queue[n].came < now; n++ {
		t := o.queue[n]
		o.last = max(o.last, now) + 1
		if calls := o.last%2 == 0; calls != t.Calls {
			o.last++
		}
		t.at = o.last
	}
	o.queue = slices.Delete(o.queue, 0, n)
}

func (r Rank) compare(o Rank) int {
	switch {
	case r.Calls != o.Calls && o.Calls:
		return -1
	case r.Calls != o.Calls:
		return 1
	}
	return cmp.Or(cmp.Compare(r.Group, o.Group), cmp.Compare(r.Member, o.Member))
}
