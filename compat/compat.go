// Package compat makes sessions behave as kcp-go's do where that differs
// from package kcp. It is for module kcpgo, which has kcp-go's API: a module that
// takes the place of another by a replace directive cannot import the internal
// packages of this one. Other programs have no use for it. There is no promise
// that it stays as it is.
package compat

import (
	kcp "github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/opening"
)

// Options are ways of kcp-go. The zero value is the behaviour of package kcp.
type Options struct {
	// SegmentBound makes Write wait while as many segments as the send window
	// has are waiting or not acknowledged, whatever Config.WriteBuffer is, and
	// then take all of what it is given. One Write may queue any number of
	// bytes. It concerns WriteMessage too, which takes one message in any case.
	SegmentBound bool
	// DataBeforeDeadline makes deadlines concern only calls that have to wait.
	// Read and ReadMessage return data, or the end of the session, even if the
	// read deadline has passed. Write takes data if there is room even if the
	// write deadline has passed.
	DataBeforeDeadline bool
	// Validated, if not nil, is called when the peer of a session has validated
	// its address (RFC 9000 §8), on a goroutine of its own. That may be before
	// Accept returns the session; see the function Validated.
	Validated func(c *kcp.Conn)
}

// Set sets the options of all sessions of an endpoint. It must be called before the
// first call of Listen or Dial.
func Set(e *kcp.Endpoint, o Options) {
	shared := opening.Compat{SegmentBound: o.SegmentBound, DataBeforeDeadline: o.DataBeforeDeadline}
	if o.Validated != nil {
		shared.Validated = func(conn any) { o.Validated(conn.(*kcp.Conn)) }
	}
	opening.CompatRoot.Set(e, shared)
}

// Validated reports whether the peer's address is validated. It is true before
// Options.Validated is called.
func Validated(c *kcp.Conn) bool { return opening.CompatRoot.Validated(c) }

// Close is c.Close. It also returns the messages that had arrived in order and were not
// read, or the segments of a stream of bytes.
func Close(c *kcp.Conn) (received [][]byte, err error) { return opening.CompatRoot.Close(c) }

// HandleDatagrams makes f take the datagrams of a session that arrive from now on, in
// place of ReceiveDatagram and before EventDatagram; nil ends that. Those that had
// arrived before stay for ReceiveDatagram. Those that arrive after Close are dropped.
//
// Calls of f do not overlap. They are made on the goroutine that reads the socket, which
// may be in a blocked Read or Write; nothing else is received meanwhile. So f must not
// block, nor call what may: Read, Write, Close of a session that lingers, Shutdown. It may
// call SendDatagram and HandleDatagrams. b is valid during the call only; f may change
// it. When HandleDatagrams returns, the old handler may still be running.
func HandleDatagrams(c *kcp.Conn, f func(b []byte)) { opening.CompatRoot.Datagrams(c, f) }

// InputRecovered is k.Input for a packet that forward error correction has reconstructed.
func InputRecovered(k *kcp.KCP, packet []byte) error {
	return opening.CompatRoot.Recovered(k, packet)
}
