package kcp

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/internal/shed"
)

// holding is the account of the memory that a session holds because of its
// peer. It is written with Conn.mu held. The endpoint reads the atomics without
// it, and so needs no lock of a session to weigh all of them.
type holding struct {
	bytes  atomic.Int64  // the session's part of endpointLoad.buffered, within accountGrain
	recent atomic.Uint64 // shed.Recent of the payload that has arrived, each byte once, or was read
}

// lately returns how many bytes have arrived, or were read, in the last seconds. It
// needs no lock.
func (h *holding) lately(now time.Duration) int64 { return shed.Recent(h.recent.Load()).At(now) }

// moved adds n bytes to recent.
func (h *holding) moved(n int64, now time.Duration) {
	h.recent.Store(uint64(shed.Recent(h.recent.Load()).Add(n, now)))
}

// held returns the memory that the session holds because of its peer, in bytes.
func (c *session) held() int {
	n := c.kcp.Held()
	if c.in.datagrams != nil {
		n += c.in.datagrams.bytes
	}
	if c.in.decoder != nil {
		n += c.in.decoder.Stats().Held
	}
	if c.tls != nil && c.tls.handshake != nil {
		h := c.tls.handshake
		n += h.Held()
	}
	if c.tls != nil && c.tls.secured != nil {
		n += c.tls.secured.bytes
	}
	if v := c.path.validation; v != nil && v.Deferred() != nil {
		n += cap(v.Deferred().Data)
	}
	if c.streams != nil {
		n += c.streamMemory()
	}
	return n
}

// accountGrain is by how many bytes holding.bytes may differ from held, while
// the session holds anything. So small messages that arrive and are read cost
// no write to the counter that all sessions share.
const accountGrain = 1 << 10

// leastShare is the least share of a session, in bytes, whatever the others hold.
const leastShare = 64 << 10

// leastMargin is the least by which Config.MaxBuffered may be exceeded before a session
// is ended early: the size in buffers, in bytes, of the reference's longest message at
// the default MTU. All of it has to be held before any can be read.
const leastMargin = 256 << 10

// littleHeld is how many bytes a session may hold for as long as it likes, unless
// memory is shorter than by a margin.
const littleHeld = 16 << 10

// account updates holding, and with it the endpoint's total. Those are exact
// for a session that was not offered to Accept, or whose peer's address is not
// validated.
func (c *session) account() {
	h := &c.in.holding
	n, old := int64(c.held()), h.bytes.Load()
	if d := n - old; d != 0 && (n == 0 || d >= accountGrain || d <= -accountGrain || c.hs.unvalidated.Load() || !c.hs.offered) {
		c.shared.load.buffered.Add(d)
		h.bytes.Store(n)
	}
	if d := uint32(c.kcp.counts().BytesReceived) - c.in.arrived; d >= accountGrain {
		c.in.arrived += d
		h.moved(int64(d), c.host.now())
	}
}

// accountRead is account after the application has read n bytes. That is progress,
// too: a peer that has sent all it has does not pay for a reader that takes its time.
// Sessions that hold little do not pay in any case.
func (c *session) accountRead(n int) {
	h := &c.in.holding
	if c.account(); h.bytes.Load() >= littleHeld {
		h.moved(int64(n), c.host.now())
	}
}

// overShare reports whether all sessions together exceed Config.MaxBuffered and
// this one holds more than its share. Its share is at least three quarters of
// what has arrived in the last two to four seconds, of which the rest has been
// read then: many windows of its path, so that the path runs even if it loses
// packets. That fades out as MaxBuffered is exceeded by two to four margins.
func (c *session) overShare() bool {
	over, margin := c.shared.overload()
	h := &c.in.holding
	held := h.bytes.Load()
	if over <= 0 || held <= max(c.shared.load.share.Load(), leastShare) {
		return false
	}
	carried := min(h.lately(c.host.now())/4*3, math.MaxInt32)
	return held > carried*min(max(4*margin-over, 0), 2*margin)/(2*margin)
}

// shedMemory releases what the session holds: spare memory, and
// what the peer does not rely on, as it may get lost on the way as well. If that
// is not most of it, it ends the session with ErrMemoryPressure, and reports
// true.
func (c *session) shedMemory() bool {
	if c.closing.state == stateEnded {
		return false
	}
	before := c.held()
	c.kcp.Compact()
	c.compactStreams()
	c.dropUnreliable()
	if c.account(); before > 0 && 2*c.held() <= before {
		return false
	}
	c.kcp.closeReceive()
	c.dropStreams(c.reason(ErrMemoryPressure))
	c.dropDecoder()
	c.abort(ErrMemoryPressure)
	return true
}

// dropUnreliable drops datagrams that were not read, what is kept for the
// recovery of packets, and a packet of a path that is not validated.
func (c *session) dropUnreliable() {
	if q := c.in.datagrams; q != nil {
		q.stats.Dropped += uint64(len(q.waiting))
		q.waiting, q.bytes = nil, 0
	}
	if c.in.decoder != nil {
		c.in.decoder.Compact()
	}
	if c.path.validation != nil {
		c.path.validation.Drop()
	}
}

// memoryPressure returns the memory pressure on the session, after Linux's
// tcp_mem.
func (c *session) memoryPressure() memoryPressure {
	switch {
	case c.hs.unvalidated.Load() && !c.hs.offered:
		return pressureReserved
	case c.overShare():
		return pressureHigh
	}
	return pressureNone
}
