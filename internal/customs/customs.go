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

// set is what the root package has connected.
var set func(conn any, o Customs)

// Connect makes f the way to set the customs of a *kcp.Conn. The root package
// calls it once, before main begins.
func Connect(f func(conn any, o Customs)) bool {
	set = f
	return true
}

// Set sets the customs of a session, a *kcp.Conn.
func Set(conn any, o Customs) { set(conn, o) }
