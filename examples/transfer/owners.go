package main

import (
	"sync"

	"github.com/arqnet/kcp"
)

// owners knows which session may write the file of a transfer: the last one that has
// asked, once the one before has stopped.
type owners struct {
	most int // transfers at a time

	mu sync.Mutex
	of map[string]*owner // by the id of the transfer; at most as many as most
}

// owner is a session that owns a transfer, or waits until the one before has released
// it.
type owner struct {
	conn     *kcp.Conn
	released chan struct{} // closed when conn does not own the transfer any more
}

// newOwners returns owners of at most so many transfers at a time.
func newOwners(most int) *owners {
	return &owners{most: most, of: make(map[string]*owner)}
}

// take makes conn the owner of a transfer. It ends the session that was the owner
// before, and waits until its goroutine has called release, which it must do when it
// has written for the last time.
func (o *owners) take(id string, conn *kcp.Conn) (release func(), err error) {
	me := &owner{conn: conn, released: make(chan struct{})}
	o.mu.Lock()
	before := o.of[id]
	if before == nil && len(o.of) >= o.most {
		o.mu.Unlock()
		return nil, &refusal{codeBusy, "too many transfers at the moment"}
	}
	o.of[id] = me
	o.mu.Unlock()
	if before != nil {
		// Close would deliver what was written before. This ends the session now, and
		// the calls of its goroutine fail.
		_ = before.conn.Abort(codeTakenOver, "another session continues the transfer")
		<-before.released
	}
	return func() {
		o.mu.Lock()
		if o.of[id] == me {
			delete(o.of, id)
		}
		o.mu.Unlock()
		close(me.released)
	}, nil
}
