// Package interop tests package kcp against kcp-go over real sockets: directly
// over loopback, and through a relay that loses, duplicates, delays and
// reorders. It holds nothing but tests, in a module of its own so that no user
// of package kcp inherits kcp-go.
//
//	go test ./...                               each mode of kcp-go once, in seconds
//	KCP_LONG=1 go test ./...                    all pairs of settings, some minutes
//	KCP_INTEROP=full go test -timeout 60m ./... a cross product besides
//	KCP_INTEROP_SEED=1234 go test ./...         a given seed
//
// The seed decides the contents, the sizes of the writes and the luck of the
// relays. It is printed when a test fails. As the tests run in real time, the
// same seed makes a failure likely to come again, not certain.
package interop
