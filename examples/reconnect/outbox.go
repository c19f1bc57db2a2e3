package main

import "sync"

// outbox is the messages that the server does not have for certain, with their numbers.
// It outlives sessions: each begins where the server says.
type outbox struct {
	mu      sync.Mutex
	begun   bool          // the server has said how many it has
	first   uint64        // number of the first in queue
	queue   [][]byte      // in order
	changed chan struct{} // closed when something is added, or leaves
}

func newOutbox() *outbox { return &outbox{changed: make(chan struct{})} }

// add queues a message.
func (o *outbox) add(m []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.queue = append(o.queue, m)
	o.change()
}

// change wakes who waits. o.mu is held.
func (o *outbox) change() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// stored takes what the server says: it has all messages below n. One that has fewer than
// before, or more than there are, has other messages than these.
func (o *outbox) stored(n uint64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.begun { // this client may have run before
		o.begun, o.first = true, n
	}
	if n < o.first || n-o.first > uint64(len(o.queue)) {
		return errNumbers
	}
	o.queue, o.first = o.queue[n-o.first:], n
	o.change()
	return nil
}

// at returns message n, or nil and what is closed when there may be one.
func (o *outbox) at(n uint64) ([]byte, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if i := n - o.first; n >= o.first && i < uint64(len(o.queue)) {
		return o.queue[i], nil
	}
	return nil, o.changed
}

// waiting returns how many messages the server may not have, and what is closed when
// that changes.
func (o *outbox) waiting() (int, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.queue), o.changed
}
