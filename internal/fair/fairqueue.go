// Package fair says who gets what is scarce, and who gives it up, so that no network gets
// the part of others: processor time, room in a table, memory, sockets that are kept,
// records of a log.
package fair

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/arqnet/kcp/internal/container"
)

// A Queue runs work that takes processor time, a bounded number of pieces at a time, and
// lets the networks that have work waiting take turns (fair queuing, RFC 970): first the
// sites, then the subnets within each. It does not bound how much waits: its callers do.

// Lease is a lease for work that may call what waits for something other than a
// processor.
const Lease = 100 * time.Millisecond

// Queue is such a queue. All methods are safe for concurrent use, and none waits.
type Queue struct {
	slots int           // pieces of work at a time; immutable
	lease time.Duration // immutable

	mu      sync.Mutex // guards the fields below, and all turns and work; locked last
	running []*Work    // that have a slot
	sites   map[netip.Addr]*turn
	subnets map[netip.Addr]*turn
	turns   container.List[turn] // of sites that have work waiting
	waiting int                  // pieces of work
	armed   bool                 // a timer calls expire
}

// turn is a site or a subnet that has work waiting.
type turn struct {
	addr  netip.Addr
	site  *turn                // of a subnet
	turns container.List[turn] // of the subnets of a site
	work  container.List[Work] // of a subnet
	links container.Links[turn]
}

// Work is a piece of work.
type Work struct {
	queue *Queue
	run   func()
	turn  *turn     // of its subnet; nil: it does not wait
	since time.Time // it runs
	links container.Links[Work]
}

func (t *turn) place() *container.Links[turn] { return &t.links }
func (w *Work) place() *container.Links[Work] { return &w.links }

// NewQueue returns a queue that runs so many pieces of work at a time. A piece keeps
// another from running for so long at most: what takes longer waits for something other
// than a processor. With a lease of 0 it is until its end.
func NewQueue(slots int, lease time.Duration) *Queue { return &Queue{slots: slots, lease: lease} }

// Go has f run on a goroutine of its own: at once, or when it is the turn of its network.
func (q *Queue) Go(from Block, f func()) *Work {
	w := &Work{queue: q, run: f}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.running) < q.slots {
		q.startLocked(w)
	} else {
		q.waitLocked(w, from)
		q.armLocked()
	}
	return w
}

// Cancel takes back work that waits. It reports false if that has begun, or was taken
// back before.
func (w *Work) Cancel() bool {
	w.queue.mu.Lock()
	defer w.queue.mu.Unlock()
	waited := w.turn != nil
	if waited {
		w.queue.removeLocked(w)
	}
	return waited
}

// Waiting returns the number of pieces of work that wait.
func (q *Queue) Waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting
}

// waitLocked adds work behind what its subnet has waiting.
func (q *Queue) waitLocked(w *Work, from Block) {
	if q.sites == nil {
		q.sites, q.subnets = make(map[netip.Addr]*turn), make(map[netip.Addr]*turn)
	}
	site := q.sites[from.Site]
	if site == nil {
		site = &turn{addr: from.Site}
		q.sites[from.Site] = site
		q.turns.Add((*turn).place, site, false)
	}
	w.turn = q.subnets[from.Subnet]
	if w.turn == nil {
		w.turn = &turn{addr: from.Subnet, site: site}
		q.subnets[from.Subnet] = w.turn
		site.turns.Add((*turn).place, w.turn, false)
	}
	w.turn.work.Add((*Work).place, w, false)
	q.waiting++
}

// removeLocked removes work that waits, and the turns of networks that have no more.
func (q *Queue) removeLocked(w *Work) {
	subnet := w.turn
	site := subnet.site
	subnet.work.Remove((*Work).place, w)
	q.waiting--
	if w.turn = nil; subnet.work.First() == nil {
		site.turns.Remove((*turn).place, subnet)
		delete(q.subnets, subnet.addr)
	}
	if site.turns.First() == nil {
		q.turns.Remove((*turn).place, site)
		delete(q.sites, site.addr)
	}
	if len(q.sites) == 0 {
		q.sites, q.subnets = nil, nil // a map gives no memory back
	}
}

// startLocked begins a piece of work.
func (q *Queue) startLocked(w *Work) {
	run := w.run
	w.run, w.since = nil, time.Now()
	q.running = append(q.running, w)
	go func() {
		defer q.done(w)
		run()
	}()
}

// done ends a piece of work, and begins the next, unless that had its slot already.
func (q *Queue) done(w *Work) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.running, w); i >= 0 {
		q.running = slices.Delete(q.running, i, i+1)
		q.nextLocked()
	}
}

// nextLocked begins work of the network whose turn it is, if any waits.
func (q *Queue) nextLocked() {
	site := q.turns.First()
	if site == nil {
		return
	}
	subnet := site.turns.First()
	q.turns.Remove((*turn).place, site)
	q.turns.Add((*turn).place, site, false)
	site.turns.Remove((*turn).place, subnet)
	site.turns.Add((*turn).place, subnet, false)
	next := subnet.work.First()
	q.removeLocked(next)
	q.startLocked(next)
}

// armLocked sets a timer for the end of the oldest lease, if something waits for that.
func (q *Queue) armLocked() {
	if q.lease > 0 && !q.armed && q.turns.First() != nil {
		q.armed = true
		time.AfterFunc(time.Until(q.running[0].since.Add(q.lease)), q.expire)
	}
}

// expire passes on the slots of work whose lease has ended.
func (q *Queue) expire() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.armed = false
	for q.turns.First() != nil && time.Since(q.running[0].since) >= q.lease {
		q.running = slices.Delete(q.running, 0, 1)
		q.nextLocked()
	}
	q.armLocked()
}
