// Package compat makes sessions behave as those of kcp-go do where that differs
// from package kcp. It is for module kcpgo, which has kcp-go's API: a module that
// takes the place of another by a replace directive cannot import the internal
// packages of this one. Other programs have no use for it. There is no promise
// that it stays as it is.
package compat

import (
	kcp "github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/customs"
)

// Customs are ways of kcp-go. The zero value is the behaviour of package kcp.
type Customs struct {
	// SegmentBound makes Write wait while as many segments as the send window
	// has are waiting or not acknowledged, whatever Config.WriteBuffer is, and
	// then take all of what it is given. One Write may queue any number of
	// bytes. It concerns WriteMessage too, which takes one message in any case.
	SegmentBound bool
	// ReadAfterClose makes Read and ReadMessage return what had arrived in
	// order before Close, and only then net.ErrClosed. Abort still drops it, as
	// does the end of the endpoint. The data belongs to the application then:
	// Config.MaxBuffered does not count it.
	ReadAfterClose bool
	// DataBeforeDeadline makes deadlines concern only calls that have to wait.
	// Read and ReadMessage return data, or the end of the session, even if the
	// read deadline has passed. Write takes data if there is room even if the
	// write deadline has passed.
	DataBeforeDeadline bool
	// Validated, if not nil, is called once when the peer's address is validated
	// (RFC 9000 §8): by Set if it is already, and on a goroutine of its own later.
	// Set must then be called only once.
	Validated func()
}

// Set sets the customs of a session, in place of those set before. It may be
// called at any time, and concerns calls that begin later. It does nothing after
// Close or Abort.
func Set(c *kcp.Conn, o Customs) { customs.Set(c, customs.Customs(o)) }
