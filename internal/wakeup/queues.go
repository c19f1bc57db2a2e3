package wakeup

import "time"

// Queues is several queues, so that those who use them seldom wait for each other's
// locks. Each element is in the same one always. Init is called before any other
// method. The others are safe for concurrent use.
type Queues[T any] struct {
	all  []Queue[T]
	hash func(T) uint32
}

// mostQueues is the most queues of Queues.
const mostQueues = 16

// Init makes queues for so many goroutines that run at a time, as Queue.Init. hash
// returns a random number of an element, which does not change.
//
// With every packet a session uses one. With one for all, eight goroutines waited for its
// lock nearly half of the time; each further one has a timer that wakes the process. So
// there is one for each two of them.
func (q *Queues[T]) Init(procs int, epoch time.Time, index func(T) *int32, hash func(T) uint32, turn func(), wake func(T), late func(time.Duration)) {
	n := min((procs+1)/2, mostQueues)
	q.all, q.hash = make([]Queue[T], n), hash
	for i := range q.all {
		q.all[i].Init(epoch, index, turn, wake, late)
	}
}

// of returns the queue of elem.
func (q *Queues[T]) of(elem T) *Queue[T] {
	if len(q.all) == 1 {
		return &q.all[0]
	}
	return &q.all[q.hash(elem)%uint32(len(q.all))]
}

// Set is Queue.Set.
func (q *Queues[T]) Set(elem T, at time.Duration) { q.of(elem).Set(elem, at) }

// Remove is Queue.Remove.
func (q *Queues[T]) Remove(elem T) { q.of(elem).Remove(elem) }

// Stop is Queue.Stop of all.
func (q *Queues[T]) Stop() {
	for i := range q.all {
		q.all[i].Stop()
	}
}

// Idle reports whether all are idle.
func (q *Queues[T]) Idle() bool {
	for i := range q.all {
		if !q.all[i].Idle() {
			return false
		}
	}
	return true
}

// Lag returns how late the wake-ups of the last seconds were: the median and the
// longest. If probe is set, probes are among them, while it is called at least every
// probeFor.
func (q *Queues[T]) Lag(probe bool) (p50, most time.Duration) {
	var all Lag
	if probe {
		q.all[0].look()
	}
	for i := range q.all {
		q.all[i].addLag(&all)
	}
	return all.summary()
}
