// Package soak has a test that runs many random applications over real sockets,
// through a relay that harms their packets, against a server in a process of its
// own that may be killed, restarted or told to leave:
//
//	go test ./soak -v -first 1 -seeds 500
//	go test ./soak -v -seed 17   # one seed, with all that happened
//
// Sessions are plain, with ciphers or TLS; they carry bytes, messages with
// receipts and streams, end in every way, and a Group may serve them. Outages,
// new addresses and restarts come at random, and in the midst of handshakes.
//
// The judge's rules (judge_test.go):
//
//   - What is read is what was written: the bytes, the order, the boundaries. At
//     io.EOF it is all of it. Messages of streams come once, in order unless the
//     stream is without, and all of them unless they may be given up.
//   - Every call returns in the time that the settings allow, with an error that
//     its documentation names.
//   - Reading ends before io.EOF only if the peer broke off, was killed, or was
//     out of reach for half of PeerTimeout. Dial fails only then, too.
//   - Close returns nil only if the peer's application could read all, and an
//     error only if it could not. After Flush, all that was written is read.
//   - A message has one receipt. If that is nil, the message is read before the
//     stream's io.EOF. If Close returns nil, so are all receipts of reliable
//     messages.
//   - A stream is reset only by its peer, with the peer's code. The reason of
//     CloseWithError arrives.
//   - A session in a group has EventAccepted first, EventEnded once and last, and
//     no data after EventEOF.
//   - At the end nothing is left: no session, byte, goroutine or descriptor.
//
// A path that loses more than a sixth of its packets, or long runs of them, may
// lose all repetitions of an ending. What it may excuse is a note, no failure.
//
// A seed determines the settings, the path, what the applications do, and when.
// As time is real, two runs of a seed are not the same.
package soak
