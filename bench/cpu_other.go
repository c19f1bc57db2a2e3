//go:build !unix

package main

import "time"

var start = time.Now()

// cpuTime returns the time since the program started, in place of the
// processor time it has used.
func cpuTime() time.Duration { return time.Since(start) }
