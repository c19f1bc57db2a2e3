package opening

// Compat is ways of kcp-go in which the sessions of an endpoint may behave. Package
// compat describes them.
type Compat struct {
	SegmentBound       bool
	DataBeforeDeadline bool
	Validated          func(conn any)
}

// CompatHooks are functions of the root package, for package compat. What they take is a
// *kcp.Endpoint, a *kcp.Conn, a *kcp.Config and a *kcp.KCP.
type CompatHooks struct {
	Set       func(endpoint any, o Compat)
	Validated func(conn any) bool
	Close     func(conn any) (received [][]byte, err error)
	Datagrams func(conn any, f func(b []byte))
	Recovered func(k any, packet []byte) error

	// Machine sets up a state machine as a session with that Config does, for benchmarks
	// of sessions without sockets. alike says that the peer is one as well. It returns
	// the MTU of the session.
	Machine func(config, k any, alike bool) (mtu int)
}

// CompatRoot is the hooks that ConnectCompat was given.
var CompatRoot CompatHooks

// ConnectCompat sets CompatRoot. The root package calls it once, before main begins.
func ConnectCompat(h CompatHooks) bool {
	CompatRoot = h
	return true
}
