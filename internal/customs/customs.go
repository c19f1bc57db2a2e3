// Package customs is what package compat and the sessions have in common.
package customs

// Customs are ways of kcp-go in which a session may behave. Package compat
// describes them.
type Customs struct {
	SegmentBound       bool
	ReadAfterClose     bool
	DataBeforeDeadline bool
	Validated          func()
}

// What the root package has connected.
var (
	set     func(conn any, o Customs)
	machine func(config, k any) (mtu int)
)

// Connect makes s the way to set the customs of a *kcp.Conn, and m the way to set up a
// *kcp.KCP. The root package calls it once, before main begins.
func Connect(s func(conn any, o Customs), m func(config, k any) (mtu int)) bool {
	set, machine = s, m
	return true
}

// Machine sets up a state machine, a *kcp.KCP, as that of a session with a *kcp.Config,
// for benchmarks of sessions without sockets. It returns the MTU of the session.
func Machine(config, k any) (mtu int) { return machine(config, k) }

// Set sets the customs of a session, a *kcp.Conn.
func Set(conn any, o Customs) { set(conn, o) }
