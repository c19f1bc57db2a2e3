package tunnel

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// maxQueuedRecords is how many records of the log may wait for a handler that does
	// not take them. Further ones are left out.
	maxQueuedRecords = 1000
	// slowHandler is how long the work waits for a handler before it goes on without.
	slowHandler = 500 * time.Millisecond
)

// recordQueue has records handled one after the other, on a goroutine that lives while
// there are some. Whoever logs waits for that, so that records are where they belong; but
// not for a handler that is stuck, as nobody reads what it writes.
type recordQueue struct {
	mu      sync.Mutex
	waiting []func()
	runs    bool
	stuck   bool // until nothing waits
	leftOut int
}

// queuedHandler is a slog.Handler that does not block for long.
type queuedHandler struct {
	slog.Handler
	queue *recordQueue
}

// queued returns log with a handler that does not block for long.
func queued(log *slog.Logger) *slog.Logger {
	return slog.New(&queuedHandler{log.Handler(), new(recordQueue)})
}

func (h *queuedHandler) Handle(ctx context.Context, r slog.Record) error {
	done := make(chan struct{})
	r = r.Clone()
	if !h.queue.push(func() {
		defer close(done)
		if n := h.queue.takeLeftOut(); n > 0 {
			r.Add("records left out before", n)
		}
		_ = h.Handler.Handle(context.WithoutCancel(ctx), r)
	}) {
		return nil
	}
	timer := time.NewTimer(slowHandler)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		h.queue.mu.Lock()
		h.queue.stuck = true
		h.queue.mu.Unlock()
	}
	return nil
}

func (h *queuedHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &queuedHandler{h.Handler.WithAttrs(attrs), h.queue}
}

func (h *queuedHandler) WithGroup(name string) slog.Handler {
	return &queuedHandler{h.Handler.WithGroup(name), h.queue}
}

// push adds a record, if there is room, and reports whether to wait for it.
func (q *recordQueue) push(handle func()) (wait bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) >= maxQueuedRecords {
		q.leftOut++
		return false
	}
	q.waiting = append(q.waiting, handle)
	if !q.runs {
		q.runs = true
		go q.run()
	}
	return !q.stuck
}

// run handles records until there are none.
func (q *recordQueue) run() {
	for {
		q.mu.Lock()
		if len(q.waiting) == 0 {
			q.runs, q.stuck, q.waiting = false, false, nil
			q.mu.Unlock()
			return
		}
		next := q.waiting[0]
		q.waiting[0] = nil
		q.waiting = q.waiting[1:]
		q.mu.Unlock()
		next()
	}
}

// takeLeftOut returns how many records were left out, and counts from 0.
func (q *recordQueue) takeLeftOut() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, q.leftOut = q.leftOut, 0
	return n
}
