// Executed runs an operation of a warm session, and writes which code it executes to
// GOCOVERDIR. The test of this folder builds it with coverage counters, runs each
// operation in a process of its own, and counts the files and functions of the module:
// they say how much code a reader has to follow.
//
// Time is virtual, so that no timer fires in the middle of an operation. The counters
// are cleared right before it. They are written when nothing goes on any more without
// time passing, so what the operation starts is in them. Both ends are in memory, and a
// gate holds packets back, so that only one end runs.
package main

import (
	"flag"
	"os"
	"testing"
	"testing/synctest"
)

var operations = map[string]func(){"write": write, "read": read, "dial": dial, "stream": stream}

func main() {
	testing.Init()
	flag.Parse()
	run := operations[flag.Arg(0)]
	any := func(string, string) (bool, error) { return true, nil }
	testing.Main(any, []testing.InternalTest{{Name: "operation", F: func(t *testing.T) {
		synctest.Test(t, func(*testing.T) {
			run()
			os.Exit(0) // its sessions are open
		})
	}}}, nil, nil)
}
