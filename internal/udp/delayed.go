package udp

import (
	"sync/atomic"
	"time"
)

// The system takes a processor from a thread within a system call, too. Go then lets
// other goroutines run in its place (the thread's P is handed to another), but not
// during a raw call. In a process that lacks processor time, sockets therefore make
// ordinary calls only: with 24 busy processes on two processors, a server and its
// clients get twice as much done. Otherwise raw ones are cheaper; see shortCall.

const (
	// delayedBy is how late a timer of the process is for the process to lack
	// processor time.
	delayedBy = 5 * time.Millisecond
	// delayedFor is how long it does after the last such timer.
	delayedFor = time.Second
)

var (
	delayed      atomic.Bool  // the process lacks processor time
	delayedUntil atomic.Int64 // with that: Unix time in ns
)

// IsDelayed reports whether the process lacks processor time.
func IsDelayed() bool { return delayed.Load() }

// Delayed records that a timer of the process was late by d. Callers call it for
// all their timers.
func Delayed(d time.Duration) {
	switch {
	case d >= delayedBy:
		delayedUntil.Store(time.Now().Add(delayedFor).UnixNano())
		delayed.Store(true)
	case delayed.Load() && time.Now().UnixNano() > delayedUntil.Load():
		delayed.Store(false)
	}
}
