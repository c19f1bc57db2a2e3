package kcp

import (
	"sync"
	"time"
)

// deadline is a point in time after which calls fail. Its fields belong to mu.
type deadline struct {
	mu      *sync.Mutex
	changed interface{ Broadcast() } // told when the deadline passes
	timer   *time.Timer
	expired bool
}

func (d *deadline) init(mu *sync.Mutex, changed interface{ Broadcast() }) {
	d.mu, d.changed = mu, changed
}

// set moves the deadline; the zero time means never.
func (d *deadline) set(t time.Time) {
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
		d.changed.Broadcast()
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(wait, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.timer == timer { // not moved meanwhile
			d.expired = true
			d.changed.Broadcast()
		}
	})
	d.timer = timer
}
