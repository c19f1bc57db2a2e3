package wakeup

import "time"

const (
	// probeEvery is the time between probes. They see that the process does not run
	// for longer than that, though nothing else is due.
	probeEvery = 100 * time.Millisecond
	// probeFor is for how long there are probes after somebody has asked for the lag.
	// So a process at which nobody looks is not woken for them.
	probeFor = 90 * time.Second
)

// look keeps probes of the lag going.
func (q *Queue[T]) look() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.looked = time.Since(q.epoch)
	if q.probeAt == 0 && !q.stopped {
		q.probeLocked(q.looked)
	}
}

// probeLocked sets the timer of the next probe.
func (q *Queue[T]) probeLocked(now time.Duration) {
	q.probeAt = now + probeEvery
	if q.probe == nil {
		q.probe = time.AfterFunc(probeEvery, q.probed)
	} else {
		q.probe.Reset(probeEvery)
	}
}

// probed records how late a probe is.
func (q *Queue[T]) probed() {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Since(q.epoch)
	if q.probeAt == 0 || q.stopped {
		return
	}
	q.recordLocked(now-q.probeAt, now)
	if q.probeAt = 0; now-q.looked < probeFor {
		q.probeLocked(now)
	}
}
