package cluster

import (
	"context"
	"net"
	"sync"
	"time"
)

// Message is a message of another node.
type Message struct {
	From     string // the node, by its certificate
	Data     []byte
	Reliable bool // by Send or Broadcast, not as a datagram
}

// messageEntry is the memory of a waiting message beside its data, in bytes.
const messageEntry = 64

// queue holds messages that wait for Receive.
type queue struct {
	limit int // bytes; one message may be larger

	mu      sync.Mutex // guards the fields below; no other lock is taken under it
	waiting []Message  // oldest first
	bytes   int        // of waiting, with messageEntry for each
	changed notice
	closed  bool
}

// notice tells any number of goroutines that something has changed. The lock of what may
// change guards it.
type notice struct{ c chan struct{} }

// wait returns a channel that is closed at the next change.
func (n *notice) wait() <-chan struct{} {
	if n.c == nil {
		n.c = make(chan struct{})
	}
	return n.c
}

func (n *notice) tell() {
	if n.c != nil {
		close(n.c)
		n.c = nil
	}
}

// offer queues m, if there is room, and otherwise reports false.
func (q *queue) offer(m Message) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.offerLocked(m)
}

func (q *queue) offerLocked(m Message) bool {
	cost := len(m.Data) + messageEntry
	if q.closed || len(q.waiting) > 0 && q.bytes+cost > q.limit {
		return false
	}
	q.waiting = append(q.waiting, m)
	q.bytes += cost
	q.changed.tell()
	return true
}

// put queues m, and waits for room. It fails with net.ErrClosed, or the error of ctx.
func (q *queue) put(ctx context.Context, m Message) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.offerLocked(m) {
		if q.closed {
			return net.ErrClosed
		}
		if err := q.waitLocked(ctx); err != nil {
			return err
		}
	}
	return nil
}

// get waits for a message, and returns the oldest one.
func (q *queue) get(ctx context.Context) (Message, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		if q.closed {
			return Message{}, net.ErrClosed
		}
		if len(q.waiting) > 0 {
			m := q.waiting[0]
			q.waiting[0] = Message{}
			q.waiting = q.waiting[1:]
			q.bytes -= len(m.Data) + messageEntry
			q.changed.tell()
			return m, nil
		}
		if err := q.waitLocked(ctx); err != nil {
			return Message{}, err
		}
	}
}

// waitLocked waits for a change, without the lock.
func (q *queue) waitLocked(ctx context.Context) error {
	changed := q.changed.wait()
	q.mu.Unlock()
	defer q.mu.Lock()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// close drops what waits, and makes all calls fail.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed, q.waiting, q.bytes = true, nil, 0
	q.changed.tell()
}

// pause waits for d, or until ctx is done.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
