//go:build unix

package main

import (
	"syscall"
	"time"
)

// cpuTime returns the processor time the process has used, its garbage
// collector included. Other processes do not disturb it as they do the clock.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // the arguments are valid
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
