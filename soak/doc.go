// Package soak has a test that runs many random applications over real sockets,
// through a relay that harms their packets, against a server in a process of its
// own that may be killed, restarted or told to leave:
//
//	go test ./soak -v -first 1 -seeds 500
//	go test ./soak -v -seed 17   # one seed, with all that happened
//
// A seed determines the settings, the path, what the applications do, and when.
// As time is real, two runs of a seed are not the same.
package soak
