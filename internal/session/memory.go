package session

import (
	"fmt"
	"io"
	"math"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/fair"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/wire"
)

// holding is the account of the memory that a session holds because of its
// peer. It is written with Conn.mu held. The endpoint reads the atomics without
// it, and so needs no lock of a session to weigh all of them.
type holding struct {
	bytes  atomic.Int64  // the session's part of Load.Buffered, within AccountGrain
	recent atomic.Uint64 // fair.Recent of the payload that has arrived, each byte once, or was read
}

// lately returns how many bytes have arrived, or were read, in the last seconds. It
// needs no lock.
func (h *holding) lately(now time.Duration) int64 { return fair.Recent(h.recent.Load()).At(now) }

// moved adds n bytes to recent.
func (h *holding) moved(n int64, now time.Duration) {
	h.recent.Store(uint64(fair.Recent(h.recent.Load()).Add(n, now)))
}

// Weight returns how many bytes the session holds because of its peer, and how many have
// arrived, or were read, in the last seconds. It needs no lock.
func (c *Session) Weight(now time.Duration) (held, lately int64) {
	return c.in.holding.bytes.Load(), c.in.holding.lately(now)
}

// held returns the memory that the session holds because of its peer, in bytes.
func (c *Session) held() int {
	n := c.kcp.Held()
	if c.in.datagrams != nil {
		n += c.in.datagrams.Memory()
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

// HalfOpenBytes is what a session itself takes, as far as anybody can make an endpoint
// hold it: it is on the endpoint's account while the peer's address is not validated.
const HalfOpenBytes = 6 << 10

// AccountGrain is by how many bytes holding.bytes may differ from held, while
// the session holds anything. So small messages that arrive and are read cost
// no write to the counter that all sessions share.
const AccountGrain = 1 << 10

// LeastShare is the least share of a session, in bytes, whatever the others hold.
const LeastShare = 64 << 10

// leastMargin is the least by which Limits.MaxBuffered may be exceeded before a session
// is ended early: the size in buffers, in bytes, of the reference's longest message at
// the default MTU. All of it has to be held before any can be read.
const leastMargin = 256 << 10

// LittleHeld is how many bytes a session may hold for as long as it likes, unless
// memory is shorter than by a margin.
const LittleHeld = 16 << 10

// account updates holding, and with it the endpoint's total. Those are exact
// for a session that was not offered to Accept, or whose peer's address is not
// validated.
func (c *Session) account() {
	h := &c.in.holding
	n, old := int64(c.held()), h.bytes.Load()
	if d := n - old; d != 0 && (n == 0 || d >= AccountGrain || d <= -AccountGrain || c.hs.unvalidated.Load() || c.hs.Role == opening.Accepted) {
		c.shared.Load.Buffered.Add(d)
		h.bytes.Store(n)
	}
	if d := uint32(c.kcp.Counts().BytesReceived) - c.in.arrived; d >= AccountGrain {
		c.in.arrived += d
		h.moved(int64(d), c.host.Now())
	}
}

// accountRead is account after the application has read n bytes. That is progress,
// too: a peer that has sent all it has does not pay for a reader that takes its time.
// Sessions that hold little do not pay in any case.
func (c *Session) accountRead(n int) {
	h := &c.in.holding
	if c.account(); h.bytes.Load() >= LittleHeld {
		h.moved(int64(n), c.host.Now())
	}
	c.growWindow(n)
}

// mostWindowRate is the rate that windows grow for, in bytes a second: 512 Mbit/s. Nearly
// all of a window is lost when the link becomes narrow.
const mostWindowRate = 64 << 20

// meterGrain is how many bytes are read before growWindow looks at them.
const meterGrain = 64 << 10

// growWindow doubles the receive window if it limits the peer, or soon will, as the
// application has read n bytes, or 0 if something has arrived behind a gap (dynamic
// right-sizing). A window that was set stays as it is.
func (c *Session) growWindow(n int) {
	in := &c.in
	if in.unmetered += n; in.fixedWindow || n > 0 && in.unmetered < meterGrain {
		return
	}
	size, used, largest := c.kcp.ReceiveWindow()
	if largest || c.closing.Caller != closing.Uses {
		return
	}
	double, now, rtt := false, c.host.Now(), time.Duration(c.rtt.Smoothed)*time.Microsecond
	if n > 0 {
		double = in.meter.Read(in.unmetered, size, now, rtt)
		in.unmetered = 0
	} else {
		double = in.meter.Early(used, size)
	}
	if 4*in.holding.lately(now) > int64(size) && c.mayPing(now) {
		c.queuePing(now) // an end that only receives learns of a longer path by that alone
	}
	if double && size <= int(mostWindowRate*rtt.Seconds()) && !c.shared.OverMemoryLimit() {
		c.kcp.DoubleWindow()
	}
}

// overShare reports whether all sessions together exceed Limits.MaxBuffered and
// this one holds more than its share. Its share is at least three quarters of
// what has arrived in the last two to four seconds, of which the rest has been
// read then: many windows of its path, so that the path runs even if it loses
// packets. That fades out as MaxBuffered is exceeded by two to four margins.
func (c *Session) overShare() bool {
	over, margin := c.shared.Overload()
	h := &c.in.holding
	held := h.bytes.Load()
	if over <= 0 || held <= max(c.shared.Load.Share.Load(), LeastShare) {
		return false
	}
	carried := min(h.lately(c.host.Now())/4*3, math.MaxInt32)
	return held > carried*min(max(4*margin-over, 0), 2*margin)/(2*margin)
}

// ShedMemory releases what the session holds: spare memory, and
// what the peer does not rely on, as it may get lost on the way as well. If that
// is not most of it, it ends the session with ErrMemoryPressure, and reports
// true.
func (c *Session) ShedMemory() bool {
	if c.closing.Phase >= closing.Ended {
		return false
	}
	before := c.held()
	c.kcp.Compact()
	c.compactStreams()
	c.dropUnreliable()
	c.accountWrites()
	if c.account(); before > 0 && 2*c.held() <= before {
		return false
	}
	c.kcp.CloseReceive()
	c.dropStreams(c.reason(ErrMemoryPressure))
	c.dropDecoder()
	c.abort(ErrMemoryPressure)
	return true
}

// dropUnreliable drops datagrams that were not read, what is kept for the
// recovery of packets, and a packet of a path that is not validated.
func (c *Session) dropUnreliable() {
	c.in.datagrams.Shed()
	if c.in.decoder != nil {
		c.in.decoder.Compact()
	}
	if c.path.validation != nil {
		c.path.validation.Drop()
	}
}

// memoryPressure returns the memory pressure on the session, after Linux's
// tcp_mem.
func (c *Session) memoryPressure() machine.Pressure {
	switch {
	case c.hs.unvalidated.Load() && c.hs.Role == opening.Accepted:
		return machine.PressureReserved
	case c.overShare():
		return machine.PressureHigh
	}
	return machine.PressureNone
}

// Memory of write buffers (compare tcp_mem and sk_forward_alloc of Linux). A
// write buffer of the default size lets a program run far ahead of its peer. With
// thousands of sessions that write, that would be gigabytes. So once the sessions
// of an endpoint together hold much, each has room for what its path needs, and
// little more.

const (
	// WriteGrain is the unit of the account in bytes, so that few writes and
	// few acknowledgements touch the counter that all sessions share.
	WriteGrain = 16 << 10
	// WritePressure is what the sessions of an endpoint may hold before room
	// becomes scarce, in grains: 64 MiB.
	WritePressure = 64 << 20 / WriteGrain
	// ScarceWriteBuffer is the write buffer when that is reached, in bytes, if
	// the path needs less. It becomes smaller as they hold more, but not than
	// LeastWriteBuffer.
	ScarceWriteBuffer = 256 << 10
	LeastWriteBuffer  = 16 << 10
)

// accountWrites updates Load.Written, which is exact to within a grain
// of each session, either way.
func (c *Session) accountWrites() {
	used, old := c.kcp.Load().Memory, int(c.outgoing.grains)
	if c.streams != nil {
		used += c.streams.Queued()
	}
	if s := c.capped; s != nil {
		used += s.waiting() * (c.shared.Config.MTU + heldPacketBytes)
	}
	if c.closing.Phase == closing.Retired {
		used = 0 // what was not delivered is garbage with the session
	}
	grains := used / WriteGrain
	if grains <= old && grains+1 >= old && (used > 0 || old == 0) {
		return
	}
	c.shared.Load.Written.Add(int64(grains - old))
	c.outgoing.grains = uint32(grains)
}

// scarceWriteBuffer returns the size in bytes of a write buffer that has the
// default size, while all together hold so much that memory is scarce. It is twice
// what may be in flight, within bounds (compare tcp_sndbuf_expand of Linux).
func (c *Session) scarceWriteBuffer(all int64) int {
	flight := int64(c.kcp.Snapshot().SendWindow) * int64(c.kcp.PacketSize()-wire.HeaderSize+machine.WriteCostPerSegment)
	scarce := max(ScarceWriteBuffer*WritePressure/all, LeastWriteBuffer)
	return int(min(max(2*flight, scarce), DefaultWriteBuffer))
}

// Read copies what has arrived into b, which has n bytes already. It returns how many it
// has then.
func (c *Session) Read(b []byte, n int) int {
	if n += c.kcp.RecvBytes(b[n:]); n > 0 {
		c.afterRead(n)
	}
	return n
}

// Lend has what arrives copied straight into b, until TakeBack.
func (c *Session) Lend(b []byte) { c.kcp.Receiver().LendBuffer(b) }

// TakeBack ends what Lend has begun. It returns how many bytes of b are not filled.
func (c *Session) TakeBack() (left int) { return c.kcp.Receiver().TakeBuffer() }

// NextMessage returns the size of the next message; negative: none is complete.
func (c *Session) NextMessage() (size int) { return c.kcp.PeekSize() }

// ReadMessage copies the next message into b. Errors are those of KCP.Recv.
func (c *Session) ReadMessage(b []byte) (n int, err error) {
	if n, err = c.kcp.Recv(b); err == nil {
		c.afterRead(n)
	}
	return n, err
}

// ReadEnd returns why nothing more can be read once the queue has no complete message:
// io.EOF once the peer has closed its side and all its data was read. nil: more may
// arrive. told says that the application has been told of io.EOF: then it is why the
// session has ended, once that is retired.
func (c *Session) ReadEnd(told bool) error {
	s := &c.closing
	if told && s.Phase == closing.Retired && s.err != nil && s.err != ErrPeerClosed {
		s.reported = true
		return s.err
	}
	if c.allReceived() && s.err != ErrMemoryPressure && s.err != ErrUnwound { // which drop what was not read
		if c.kcp.Receiver().Queued() {
			return io.ErrUnexpectedEOF // a message without its end
		}
		if s.Read == closing.ReadClosed && c.hs.reasons != nil && c.hs.reasons.peer != nil {
			return c.hs.reasons.said
		}
		return io.EOF
	}
	s.reported = s.reported || s.err != nil
	return c.reason(s.err)
}

// MaxMessage returns the largest message that may be written, in bytes; 0 outside of
// message mode.
func (c *Session) MaxMessage() int {
	if !c.messageMode() {
		return 0
	}
	most, _ := c.kcp.MessageLimit()
	return most
}

// available returns how many bytes a call that writes would queue now.
func (c *Session) available(w *WriteCall) int {
	room := c.Room()
	if room <= 0 || c.cannotWrite(w) != nil {
		return 0
	}
	payload := c.kcp.Load().Payload
	full, rest := room/(payload+machine.WriteCostPerSegment), room%(payload+machine.WriteCostPerSegment)
	return max(full*payload+max(rest-machine.WriteCostPerSegment, 0), 1)
}

// afterRead follows a read of n bytes: it schedules the release of spare
// memory, and sends a window update if the read has reopened a window of zero.
func (c *Session) afterRead(n int) {
	if c.closing.Phase >= closing.Ended {
		c.kcp.Compact()
	} else if c.timers.compactAt == 0 {
		c.timers.compactAt = c.host.Now() + CompactAfter
		c.Wake(c.timers.compactAt)
	}
	c.accountRead(n)
	if c.kcp.WindowReopened() && c.closing.Phase < closing.Ended {
		c.Push()
	}
}

// sizeError returns err, or ErrMessageTooLarge with the size of the message.
func (c *Session) sizeError(err error, size int) error {
	if err != machine.ErrMessageTooLarge {
		return err
	}
	means := fmt.Sprintf("the most that %d segments take", machine.MaxFragments)
	most, n := c.kcp.MessageLimit()
	if n < machine.MaxFragments {
		means = fmt.Sprintf("what fits into the peer's receive window of %d segments", n)
	}
	return c.host.PublicError(&SizeError{size, most, err, means})
}

// Room returns how many bytes may be written, negative if the write buffer is overfull.
func (c *Session) Room() int {
	l := c.kcp.Load()
	room := c.writeBuffer() - l.Used
	if c.shared.Compat.SegmentBound {
		const most = 1 << 14 // segments, so that an int holds their bytes
		room = min(max(l.Window-l.Segments+l.StreamSegments, -most), most) * (l.Payload + machine.WriteCostPerSegment)
	}
	if c.streams != nil {
		room = c.roomBesideStreams(room)
	}
	return room
}

// Push collects the packets of what is queued, as far as the windows allow, and of a
// pending reply.
func (c *Session) Push() {
	done := false
	defer c.endIfUnwound(&done)
	now := c.host.Now()
	c.step.left.Replied = true // the flush sends the reply, too
	if c.hs.Role == opening.Quiet && c.hs.silent() && c.kcp.WaitSend() > 0 {
		c.breakSilence(now)
	}
	c.flush(now)
	c.finishStep(now)
	done = true
}
