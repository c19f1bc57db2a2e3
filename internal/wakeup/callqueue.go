package wakeup

import (
	"slices"
	"sync"
)

// CallQueue makes calls of an application's code, one after another and without locks, on
// a goroutine that ends with the last. The zero value has none. It is safe for concurrent
// use.
type CallQueue struct {
	mu      sync.Mutex // guards the fields below; locked last
	waiting []func()
	calling bool // a goroutine makes them
}

// Add has f called after those that wait, unless these are as many as most.
func (q *CallQueue) Add(most int, f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) >= most {
		return
	}
	q.waiting = append(q.waiting, f)
	if !q.calling {
		q.calling = true
		go q.call()
	}
}

// call makes the calls that wait, and those that come meanwhile. One of them may end the
// goroutine: another then goes on.
func (q *CallQueue) call() {
	done := false
	defer func() {
		if !done {
			go q.call()
		}
	}()
	for {
		q.mu.Lock()
		if len(q.waiting) == 0 {
			q.calling, done = false, true
			q.mu.Unlock()
			return
		}
		next := q.waiting[0]
		q.waiting = slices.Delete(q.waiting, 0, 1)
		q.mu.Unlock()
		next()
	}
}
