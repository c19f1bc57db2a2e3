package admission

import (
	"sync/atomic"
	"time"
)

// Limit bounds how often something is done, such as writing a record of a log: a token
// bucket as one number (the generic cell rate algorithm). The zero value is ready. It
// needs no lock.
type Limit struct {
	next    atomic.Int64  // ns: when the bucket is full again
	leftOut atomic.Uint64 // times that were not allowed since the last one that was
}

// Allow reports whether it may be done at now, and how many times it was not before that.
// every is the mean time between two; the ones of a second may come at once, or one.
func (l *Limit) Allow(now, every time.Duration) (leftOut uint64, ok bool) {
	for {
		next := l.next.Load()
		full := max(next, int64(now))
		if full-int64(now) > int64(max(time.Second, every)-every) {
			l.leftOut.Add(1)
			return 0, false
		}
		if l.next.CompareAndSwap(next, full+int64(every)) {
			return l.leftOut.Swap(0), true
		}
	}
}
