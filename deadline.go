package kcp

import (
	"os"
	"sync"
	"time"
)

// deadline is a point in time after which calls fail. Its owner's lock guards
// it. The zero value means no deadline.
type deadline struct {
	timer *time.Timer // nil: no deadline; past: it has passed
}

// past takes the place of the timer of a deadline that has passed.
var past = &time.Timer{}

// expired reports whether the deadline has passed.
func (d *deadline) expired() bool { return d.timer == past }

// err returns os.ErrDeadlineExceeded if the deadline has passed.
func (d *deadline) err() error {
	if d.timer == past {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// set moves the deadline; the zero time means never. The caller holds mu, which
// guards the deadline. When the deadline passes, set or its timer calls
// changed.Broadcast, with mu held.
func (d *deadline) set(t time.Time, mu sync.Locker, changed interface{ Broadcast() }) {
	if d.timer != nil && !d.expired() {
		d.timer.Stop()
	}
	d.timer = nil
	if t.IsZero() {
		return
	}
	wait := time.Until(t)
	if wait <= 0 {
		d.timer = past
		changed.Broadcast()
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(wait, func() {
		mu.Lock()
		defer mu.Unlock()
		if d.timer == timer { // not moved since
			d.timer = past
			changed.Broadcast()
		}
	})
	d.timer = timer
}
