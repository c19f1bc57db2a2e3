package kcp

import (
	"sync"
	"time"
)

// deadline is a point in time after which calls fail. Its owner's lock guards
// it. The zero value is no deadline.
type deadline struct {
	timer   *time.Timer // nil: no deadline, or it had passed when it was set
	expired bool        // the deadline has passed
}

// set moves the deadline; the zero time means never. The caller holds mu, which
// guards the deadline. When the deadline passes, set or its timer calls
// changed.Broadcast, with mu held.
func (d *deadline) set(t time.Time, mu sync.Locker, changed interface{ Broadcast() }) {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.expired = false
	if t.IsZero() {
		return
	}
	wait := time.Until(t)
	if wait <= 0 {
		d.expired = true
		changed.Broadcast()
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(wait, func() {
		mu.Lock()
		defer mu.Unlock()
		if d.timer == timer { // not moved since
			d.expired = true
			changed.Broadcast()
		}
	})
	d.timer = timer
}
