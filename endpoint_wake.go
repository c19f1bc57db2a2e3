package kcp

import (
	"container/heap"
	"sync"
	"time"
)

// wakeQueue is the timer structure of an endpoint: at most one wake-up for
// each session, one timer of the runtime for all of them, and nothing at all
// while no session wants to be woken. Times are since the endpoint's epoch.
type wakeQueue struct {
	now  func() time.Duration
	wake func(*Conn) // called without mu held

	mu      sync.Mutex
	heap    wakeHeap
	timer   *time.Timer
	armedAt time.Duration // when timer fires; 0: not armed
	stopped bool
}

// set asks for c to be woken at a time, replacing an earlier request.
func (q *wakeQueue) set(c *Conn, at time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return
	}
	if c.timers.wakeIndex > 0 {
		q.heap[c.timers.wakeIndex-1].at = at
		heap.Fix(&q.heap, int(c.timers.wakeIndex)-1)
	} else {
		heap.Push(&q.heap, wakeUp{at, c})
	}
	q.arm()
}

// remove forgets the request of c.
func (q *wakeQueue) remove(c *Conn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if c.timers.wakeIndex > 0 {
		heap.Remove(&q.heap, int(c.timers.wakeIndex)-1)
	}
}

// stop ends all wake-ups.
func (q *wakeQueue) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopped = true
	for _, w := range q.heap {
		w.c.timers.wakeIndex = 0
	}
	q.heap = nil
	if q.timer != nil {
		q.timer.Stop()
	}
}

// arm sets the timer to the earliest request, unless it fires before that
// anyway.
func (q *wakeQueue) arm() {
	if len(q.heap) == 0 {
		return
	}
	at := q.heap[0].at
	if q.armedAt != 0 && q.armedAt <= at {
		return
	}
	q.armedAt = max(at, 1)
	delay := max(at-q.now(), 0)
	if q.timer == nil {
		q.timer = time.AfterFunc(delay, q.fire)
	} else {
		q.timer.Reset(delay)
	}
}

// fire wakes the sessions that are due. The runtime calls it on a goroutine of
// its own.
func (q *wakeQueue) fire() {
	q.mu.Lock()
	q.armedAt = 0
	var due []*Conn
	for now := q.now(); len(q.heap) > 0 && q.heap[0].at <= now; {
		due = append(due, heap.Pop(&q.heap).(wakeUp).c)
	}
	q.arm()
	q.mu.Unlock()
	for _, c := range due {
		q.wake(c)
	}
}

// wakeUp is one request.
type wakeUp struct {
	at time.Duration
	c  *Conn
}

// wakeHeap orders requests by time. Conn.wakeIndex is the place of the
// session's request, counted from 1; 0 means none.
type wakeHeap []wakeUp

func (h wakeHeap) Len() int           { return len(h) }
func (h wakeHeap) Less(i, j int) bool { return h[i].at < h[j].at }

func (h wakeHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].c.timers.wakeIndex, h[j].c.timers.wakeIndex = int32(i+1), int32(j+1)
}

func (h *wakeHeap) Push(x any) {
	w := x.(wakeUp)
	*h = append(*h, w)
	w.c.timers.wakeIndex = int32(len(*h))
}

func (h *wakeHeap) Pop() any {
	last := len(*h) - 1
	w := (*h)[last]
	(*h)[last] = wakeUp{}
	*h = (*h)[:last]
	w.c.timers.wakeIndex = 0
	return w
}
