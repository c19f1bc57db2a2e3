// Package soak has a test that runs many random applications over real sockets, through a
// relay that harms their packets, against a server that may be killed, restarted or told
// to leave:
//
//	go test ./soak -v -first 1 -seeds 500
//
// What applications do, and the rules by which they are judged, are those of package life
// in internal/testenv. Besides, Dial fails only if something may have kept the peer from
// answering, and at the end nothing is left: no session, byte, goroutine or descriptor.
//
// A path that loses more than a sixth of its packets, or long runs of them, may break a
// session, as it may lose all repetitions of an ending.
//
// A seed determines the settings, the path, what the applications do, and when. As time is
// real, and conversation ids are random, two runs of a seed are not the same.
package soak
