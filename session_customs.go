package kcp

import (
	"io"

	"github.com/arqnet/kcp/internal/customs"
)

// Package compat sets the customs of a session, and benchmarks set up its state machine,
// by a way that no package of others has.
var _ = customs.Connect(
	func(conn any, o customs.Customs) { conn.(*Conn).setCustoms(o) },
	func(config, k any) (mtu int) {
		c := config.(*Config).withDefaults()
		c.apply(k.(*KCP))
		return c.MTU
	},
)

// setCustoms locks c.mu, and sets the customs of the session.
func (c *Conn) setCustoms(o customs.Customs) {
	c.mu.Lock()
	set := !c.closing.closed
	if set {
		c.rarely().customs = o
		c.wakeAll()
	}
	validated := set && !c.hs.unvalidated.Load()
	c.unlock()
	if validated && o.Validated != nil {
		o.Validated()
	}
}

// customs returns how the session departs from the ways of this package.
func (c *Conn) customs() (o customs.Customs) {
	if c.rare != nil {
		o = c.rare.customs
	}
	return o
}

// segmentRoom is room with SegmentBound: the free segments of the send window,
// at the cost of full ones. It is bounded, so that an int holds it.
func (c *Conn) segmentRoom() int {
	const most = 1 << 14
	free := min(max(c.kcp.sendLimit()-c.kcp.WaitSend(), -most), most)
	return free * (c.kcp.sendPayload() + writeCostPerSegment)
}

// keepReceived takes what can be read out of the state machine, for Read after
// Close.
func (c *Conn) keepReceived() {
	if !c.customs().ReadAfterClose {
		return
	}
	for size := c.kcp.PeekSize(); size >= 0; size = c.kcp.PeekSize() {
		b := make([]byte, size)
		_, _ = c.kcp.Recv(b) // it is there, and fits
		c.rare.kept = append(c.rare.kept, b)
	}
}

// readKept is Read after Close: it takes bytes of what keepReceived has kept. It
// reports false if there is nothing.
func (c *Conn) readKept(b []byte) (n int, ok bool) {
	if c.rare == nil || len(c.rare.kept) == 0 {
		return 0, false
	}
	for len(c.rare.kept) > 0 {
		first := c.rare.kept[0]
		m := copy(b[n:], first)
		n += m
		if m < len(first) {
			c.rare.kept[0] = first[m:]
			break
		}
		c.rare.kept = c.rare.kept[1:]
	}
	return n, true
}

// readKeptMessage is ReadMessage after Close. It reports false if there is
// nothing.
func (c *Conn) readKeptMessage(b []byte) (n int, err error, ok bool) {
	if c.rare == nil || len(c.rare.kept) == 0 {
		return 0, nil, false
	}
	first := c.rare.kept[0]
	if len(first) > len(b) {
		return 0, io.ErrShortBuffer, true
	}
	c.rare.kept = c.rare.kept[1:]
	return copy(b, first), nil, true
}

// readsOn reports whether Read goes on although its deadline has passed: with
// DataBeforeDeadline, if it need not wait.
func (c *Conn) readsOn() bool {
	return c.customs().DataBeforeDeadline && (c.kcp.readable() || c.allReceived() || c.closing.err != nil)
}

// writesOn reports whether Write goes on although its deadline has passed.
func (c *Conn) writesOn() bool { return c.customs().DataBeforeDeadline && c.room() > 0 }
