// Package compatibility is what package compat and the root package have in common.
package compatibility

// Options are ways of kcp-go in which the sessions of an endpoint may behave. Package
// compat describes them.
type Options struct {
	SegmentBound       bool
	DataBeforeDeadline bool
	Validated          func(conn any)
}

// Hooks are functions of the root package. What they take is a *kcp.Endpoint, a
// *kcp.Conn, a *kcp.Config and a *kcp.KCP.
type Hooks struct {
	Set       func(endpoint any, o Options)
	Validated func(conn any) bool
	Close     func(conn any) (received [][]byte, err error)
	Datagrams func(conn any, f func(b []byte))

	// Machine sets up a state machine as a session with that Config does, for benchmarks
	// of sessions without sockets. alike says that the peer is one as well. It returns
	// the MTU of the session.
	Machine func(config, k any, alike bool) (mtu int)
}

// Root is the hooks that Connect was given.
var Root Hooks

// Connect sets Root. The root package calls it once, before main begins.
func Connect(h Hooks) bool {
	Root = h
	return true
}
