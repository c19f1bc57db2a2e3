package kcp

import "time"

// request is a signal that is repeated, at growing distances, until it has
// been answered.
type request struct {
	next   time.Duration
	signal signal
	wait   uint32 // in milliseconds
	tries  uint8  // no more than 255 are counted
	active bool
}

func (r *request) start(s signal, now, wait time.Duration) {
	*r = request{signal: s, active: true, wait: uint32(wait.Milliseconds()), next: now}
}

func (r *request) due(now time.Duration) bool { return r.active && now >= r.next }

func (r *request) sent(now time.Duration) {
	r.tries = max(r.tries, r.tries+1)
	r.next = now + time.Duration(r.wait)*time.Millisecond
	r.wait = max(r.wait, min(2*r.wait, uint32(maxRequestWait.Milliseconds())))
}

// answered takes the answer to r, if s is that.
func (r *request) answered(s signal) bool {
	if !r.active || r.signal.answer() != s {
		return false
	}
	r.active = false
	return true
}
