package main

import (
	"fmt"
	"hash/fnv"
	"testing"
)

// TestPathsStay wants the paths to be the same as ever: figures of another build
// mean something only then. The sum is of what describePath says.
func TestPathsStay(t *testing.T) {
	sum := fnv.New64a()
	for i, c := range suites["paths"].cases {
		fmt.Fprintln(sum, describePath(c))
		fatal(t, drawPath(uint64(i+1)).Validate())
	}
	if got, want := describePath("path-5"), "7.2 Mbit/s, RTT 12.6 ms, queue 0.50 BDP (5 kB), 1.37 % in bursts of 4.2, jitter 4.0 ms"; got != want {
		t.Errorf("path-5 is %s, want %s", got, want)
	}
	if got, want := sum.Sum64(), uint64(0x1fc154941166b72b); got != want {
		t.Errorf("other paths: sum %#x, want %#x", got, want)
	}
}
