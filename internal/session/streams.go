package session

import (
	"net"
	"time"

	"github.com/arqnet/kcp/internal/closing"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/wire"
)

// The streams of a session are a state machine of their own, internal/streams. This
// file connects it with the session: it is the host of the table, and passes on
// what the session's machine asks and tells.

// Capabilities in INFO (WIRE.md §5).
const (
	CapStreams    = 8  // the sender takes stream segments
	CapDialled    = 16 // it has dialled the session
	CapOwnOrder   = 64 // it takes DATA of stream 0, in the order of what the session writes
	CapLimitShift = 16 // from this bit on: how many streams it takes at first
)

const (
	// openDelay is how long a new stream waits for its first message before the
	// peer learns of it by a segment of its own.
	openDelay = time.Millisecond
	// PurgeInterval is how often a session looks for messages without credit whose
	// lifetime is over, and Close for all. That takes a look at each stream, which is not
	// for each packet.
	PurgeInterval = 50 * time.Millisecond
	// BulkAhead is how many bytes of the session itself may wait while there are
	// streams. What has been queued once has its place before them.
	BulkAhead = 64 << 10
)

// Streams is the streams of a session.
type Streams struct {
	streams.Table
	openAt  time.Duration // when the peer learns of new streams; 0: it knows of all
	purgeAt time.Duration // not before that messages whose lifetime is over are given up
}

// StreamTable returns c.streams, which it makes: most sessions have no streams.
func (c *Session) StreamTable() *Streams {
	if c.streams == nil {
		cfg := &c.shared.Config
		t := new(Streams)
		t.Init((*StreamHost)(c), streams.Limits{
			Streams: cfg.MaxStreams, WriteBuffer: cfg.StreamWriteBuffer,
			ReceiveBuffer: cfg.StreamReceiveBuffer, MostReceiveBuffer: c.shared.MostStreamBuffer,
			MostShown: max(MaxStreamReceive, cfg.StreamReceiveBuffer, cfg.StreamWriteBuffer),
		})
		c.streams = t
		c.startStreams()
	}
	return c.streams
}

// startStreams tells the machine that there are streams. What the session itself writes
// waits for none of their losses, if the peer can do so.
func (c *Session) startStreams() {
	f := machine.FeatureStreams
	if c.TakesStreams() && c.hs.capabilities&CapOwnOrder != 0 {
		f |= machine.FeatureOrder
	}
	c.kcp.Enable(f)
}

// StreamHost is a session as the streams.Host.
type StreamHost Session

func (h *StreamHost) NewSegment(n int) []byte { return h.kcp.NewBuffer(n) }
func (h *StreamHost) FreeSegment(buf []byte)  { h.kcp.SegmentBuffers().Put(buf) }
func (h *StreamHost) GrowSegment(buf []byte, n int) []byte {
	return h.kcp.SegmentBuffers().Grow(buf, n)
}

func (h *StreamHost) SegmentPayload() int { return h.kcp.PacketSize() - wire.HeaderSize }
func (h *StreamHost) Now() int64          { return h.kcp.Micros() }
func (h *StreamHost) MemoryIsShort() bool { return h.shared.OverMemoryLimit() }

func (h *StreamHost) RoundTrip() (last, rtt time.Duration) {
	return h.step.inputAt, time.Duration(h.rtt.Smoothed) * time.Microsecond
}

// WriteBuffer returns the size of a write buffer, or of one of a stream if it is
// larger, and was set or memory is not short.
func (h *StreamHost) WriteBuffer() int {
	size, ofOne := (*Session)(h).writeBuffer(), h.shared.Config.StreamWriteBuffer
	if ofOne != DefaultStreamWrite || h.shared.Load.Written.Load() <= WritePressure {
		return max(size, ofOne)
	}
	return size
}

// FirstID returns the first id of this end's streams. The dialling end's
// are odd. If both have dialled, the end's with the smaller token are.
func (h *StreamHost) FirstID() uint32 {
	l := &h.hs
	odd := l.Role >= opening.Dialled
	if odd && l.capabilities&CapDialled != 0 {
		odd = l.token < l.peerToken
	}
	if odd {
		return 1
	}
	return 2
}

func (h *StreamHost) NewStream(p *streams.Params) *streams.Stream {
	return h.host.NewStream(p)
}

func (h *StreamHost) Opened() { h.step.left.Ready |= Acceptors }

func (h *StreamHost) Dropped() { (*Session)(h).drops().Stream++ }

func (h *StreamHost) Error(code uint64, remote bool) error {
	return h.host.PublicError(&StreamError{Code: code, Remote: remote})
}

func (h *StreamHost) Closed() error {
	return h.host.PublicError(&StreamError{Remote: true, Closed: true})
}

func (h *StreamHost) Finish(t *streams.Tag, err error)            { (*Session)(h).finish(t, err) }
func (h *StreamHost) Fail(a *streams.Awaiting, f streams.Failure) { (*Session)(h).failAll(a, f) }

// PeerLimit returns what the peer's INFO says.
func (h *StreamHost) PeerLimit() int { return int(h.hs.capabilities >> CapLimitShift) }

// TakesStreams reports whether this end has told its peer that it takes stream
// segments, and knows which end opens which streams. Until then the machine
// drops and does not acknowledge them, so that the peer sends them again.
func (c *Session) TakesStreams() bool {
	return c.hs.Peer >= opening.Extended && c.hs.tokensKnown() && c.shared.Config.MaxStreams > 0
}

// tokensKnown reports whether peerToken remains what it is, if the peer is
// extended. If both ends have dialled, the peer's HELLO may come first, and may
// be forged, or of an earlier session; only WELCOME, which echoes our token,
// shows that. An end that was silent until then sends no HELLO, and gets no
// WELCOME.
func (l *handshakeState) tokensKnown() bool {
	return l.Role < opening.Dialled || l.Peer == opening.Welcomed || l.Of(opening.Hello).Signal.Code == 0
}

// OnStream is the state machine's hook for stream segments. Once the session closes,
// the peer does not wait for them.
func (c *Session) OnStream(payload []byte) {
	if c.closing.Phase < closing.Lingering {
		c.StreamTable().Input(payload, c.closing.Caller != closing.Uses)
	}
}

// StreamsWait is the machine's hook for what waits. Nothing may follow CLOSE.
func (c *Session) StreamsWait() (w streams.Waiting) {
	if c.streams != nil && c.closing.Phase < closing.Lingering {
		w = c.streams.Waits()
	}
	return w
}

// Pull is the machine's hook for the segment that is sent next. After FIN, whose
// final is known to the peer, nothing may come between what the session itself
// has still to send.
func (c *Session) Pull(plain bool) (t *streams.Tag, buf []byte, ok bool) {
	if plain && c.closing.Write != closing.WriteOpen || c.closing.Phase >= closing.Lingering {
		return nil, nil, false
	}
	c.streams.openAt = 0
	if t, buf, ok = c.streams.Pull(plain); ok && c.rare != nil && c.rare.measure != nil {
		c.rare.measure.flushes.Overtaken(c.kcp.Position().Sent)
	}
	return t, buf, ok
}

// AbandonedUpTo is the machine's hook for how far the messages of a stream are
// delivered or given up.
func (c *Session) AbandonedUpTo(t *streams.Tag) (mid machine.Seq, ok bool) {
	return c.streams.AbandonedUpTo(t)
}

// SegmentAcked is the machine's hook for a segment with a tag that was
// acknowledged.
func (c *Session) SegmentAcked(t *streams.Tag) {
	if t.OfSession {
		c.messageAcked(t)
	} else {
		c.streams.Acked(t)
	}
}

// AbandonedMessage is the machine's hook for a message that is given up.
func (c *Session) AbandonedMessage(t *streams.Tag) {
	if t.OfSession {
		c.messageAbandoned(t)
	} else {
		c.streams.GivenUp(t)
	}
}

// streamMemory returns the bytes of memory that streams take because of the peer.
// What the application still has of them once the session has ended is its own, except
// what has arrived.
func (c *Session) streamMemory() int {
	if c.closing.Phase >= closing.Ended {
		return c.streams.Held()
	}
	return c.streams.Memory()
}

// compactStreams releases spare memory of streams.
func (c *Session) compactStreams() {
	if c.streams != nil {
		c.streams.Compact()
	}
}

// streamsUnsent reports whether messages of streams wait that the peer takes.
func (c *Session) streamsUnsent() bool {
	return c.streams != nil && c.closing.Phase < closing.Lingering && c.streams.Busy()
}

// failStreams ends all streams with err, because the session has ended, or
// delivers nothing more. What has arrived can still be read.
func (c *Session) failStreams(err error) {
	t := c.streams
	if t == nil || t.Failed() {
		return
	}
	if err == nil {
		err = ErrNotDelivered
	}
	t.openAt = 0
	t.Fail(err)
}

// dropStreams drops what has arrived on streams and was not read. Calls that read
// return err then.
func (c *Session) dropStreams(err error) {
	if c.streams != nil {
		c.streams.DropUnread(err)
	}
}

// WakeStreams wakes all calls that wait for streams, which then look why.
func (c *Session) WakeStreams() {
	if c.streams != nil {
		c.streams.Wake()
	}
}

// closeStreams closes all streams, for which whole is as for startClose. It reports
// whether some of them have more to send; advanceClose calls beginClose later then: CLOSE
// says how many segments there are, so first all that waits on streams is given to the
// machine.
func (c *Session) closeStreams(now time.Duration, whole bool) bool {
	t := c.streams
	if t == nil || t.Failed() {
		return false
	}
	t.openAt = 0
	t.Close(whole)
	if t.Drained() {
		return false
	}
	c.closing.Flush(now, c.kcp.Position().Acked)
	return true
}

// undelivered reports whether the peer lacks something of what was written. What
// the application allowed to be given up does not count: messages whose lifetime or
// retransmissions are used up, and streams that were reset.
func (c *Session) undelivered() bool {
	if c.streams != nil && c.streams.Owes() {
		return true
	}
	l := c.kcp.Load()
	return l.Segments > l.StreamSegments && l.Segments > l.StreamSegments+c.segmentsGivenUp()
}

// advanceClose goes on with Close once streams have nothing more to send, or have
// made no progress for long enough.
func (c *Session) advanceClose(now time.Duration) {
	t := c.streams
	if c.closing.Phase != closing.Flushing {
		return
	}
	c.closing.Progress(now, c.kcp.Position().Acked, false)
	c.purgeStreams(now)
	switch {
	case t.Failed() || t.Drained():
	case c.closing.Late(now):
		if t.GiveUp(ErrNotDelivered) {
			c.closing.Lacks()
		}
	default:
		return
	}
	c.beginClose(now)
	c.Wake(now) // which sends CLOSE
}

// purgesAt returns when purgeStreams has something to do; 0: it has not.
func (c *Session) purgesAt() time.Duration {
	t := c.streams
	switch {
	case t == nil || t.Failed():
		return 0
	case c.closing.Phase == closing.Flushing && t.Unsent():
		return max(t.purgeAt, 1)
	case t.Expires() > 0:
		at := time.Duration(t.Expires()-int64(c.timers.clockBase)*1000) * time.Microsecond
		return max(at, t.purgeAt, 1)
	}
	return 0
}

// purgeStreams gives up messages of streams whose lifetime is over, if it is time to. The
// machine's clock is set.
func (c *Session) purgeStreams(now time.Duration) {
	if at := c.purgesAt(); at > 0 && now >= at {
		c.streams.purgeAt = now + PurgeInterval
		c.streams.Purge()
	}
}

// roomBesideStreams returns how much of room, the free bytes of the write buffer, may be
// written by the session itself.
func (c *Session) roomBesideStreams(room int) int {
	if c.streams.Len() > 0 {
		room = min(room, BulkAhead-c.kcp.Load().Unsent*(c.kcp.PacketSize()-wire.HeaderSize+machine.WriteCostPerSegment))
	}
	return room
}

// peerTakesStreams reports whether it is known if streams may be opened. The error is why
// they may not.
func (c *Session) peerTakesStreams(now time.Duration) (known bool, err error) {
	l := &c.hs
	switch {
	case c.closing.Caller != closing.Uses:
		return true, net.ErrClosed
	case c.closing.Read == closing.ReadClosed:
		return true, c.reason(ErrPeerClosed)
	case c.closing.err != nil:
		return true, c.reason(c.closing.err)
	case c.closing.Write >= closing.CloseSent:
		return true, net.ErrClosed
	case c.shared.Config.MaxStreams == 0:
		return true, ErrNoStreamsHere // nothing of the peer's answer would be taken
	case l.tokensKnown() && l.capabilities&CapStreams != 0:
		return true, nil
	case l.tokensKnown() && l.Peer >= opening.Extended && l.version != 0:
		return true, ErrNoStreamsThere
	case l.Peer == opening.Legacy, l.Peer == opening.Unknown && l.Role < opening.Dialled && now-l.born >= HelloAfterData:
		return true, ErrLegacyPeer
	}
	return false, nil
}

// OpenCall is a call that opens a stream.
type OpenCall struct {
	Params streams.Params
	Waits  bool
	Why    error           // it fails with that once nothing else speaks against it
	Wake   func()          // lets the call try again, once it is its turn
	line   *streams.Opener // its place among the calls that wait; nil: it has none
	InLine bool            // it waits for its turn, and not for the peer's kind
	Until  time.Duration   // then at most until that time, since the epoch; 0: however long
}

// OpenStream opens a stream. It returns none, and no error, if the call has to wait.
func (c *Session) OpenStream(call *OpenCall) (*streams.Stream, error) {
	now := c.host.Now()
	call.InLine, call.Until = false, 0
	known, err := c.peerTakesStreams(now)
	switch {
	case err != nil:
		return nil, err
	case call.Why != nil:
		return nil, call.Why
	case !known && !call.Waits:
		return nil, ErrKindUnknown
	case !known:
		call.Until = c.awaitKind()
		return nil, nil
	}
	t := c.StreamTable()
	switch may := t.MayOpen(call.line); {
	case !may && !call.Waits:
		return nil, ErrNoStreamYet
	case !may:
		if call.line == nil {
			call.line = &streams.Opener{Wake: call.Wake}
		}
		t.Await(call.line)
		call.InLine = true
		return nil, nil
	}
	s, err := t.Open(call.Params)
	if err != nil {
		return nil, err
	}
	if t.openAt == 0 {
		t.openAt = now + openDelay
	}
	c.Wake(t.openAt)
	return s, nil
}

// LeaveLine ends the wait of a call for its turn to open a stream.
func (c *Session) LeaveLine(call *OpenCall) {
	if call.line != nil {
		c.streams.Leave(call.line)
	}
}

// AcceptStream returns the next stream that the peer has opened; nil: there is none. The
// error is why there will be none.
func (c *Session) AcceptStream() (*streams.Stream, error) {
	if s := c.StreamTable().Accept(); s != nil {
		return s, nil
	}
	if c.closing.err == nil && c.shared.Config.MaxStreams == 0 {
		return nil, ErrNoStreamsHere
	}
	return nil, c.reason(c.closing.err)
}

// StreamEnd is how an application ends a stream, or one direction of it.
type StreamEnd uint8

const (
	FinishStream StreamEnd = iota // CloseWrite
	CloseStream                   // Close
	ResetStream                   // Reset
	StopReading                   // CancelRead
	StopWriting                   // CancelWrite
)

// EndStream ends a stream, with a code for the peer. closed says that the application has
// closed or reset it before.
func (c *Session) EndStream(s *streams.Stream, how StreamEnd, code uint64, closed bool) error {
	left := c.closing.Caller != closing.Uses
	switch how {
	case FinishStream:
		defer c.kickStreams() // the stream may be over
		s.WriteDone()
		answered := !left && s.NeedsNoFin()
		if err := c.cannotWrite(&WriteCall{Stream: s}); closed {
			return net.ErrClosed
		} else if err != nil && !answered {
			return err
		}
		s.Finish()
		return nil
	case CloseStream:
		s.StopReading(0)
		s.Finish()
	case ResetStream:
		s.Reset(code)
	case StopReading:
		if closed || left || !s.StopReading(code) {
			return net.ErrClosed
		}
	case StopWriting:
		if closed || left {
			return net.ErrClosed
		} else if !s.CancelWrite(code) {
			return c.cannotWrite(&WriteCall{Stream: s})
		}
	}
	c.kickStreams()
	return nil
}

// ReadStream reads into b, which has n bytes already, or a whole message, which is there
// and fits. It returns how many bytes b has then.
func (c *Session) ReadStream(s *streams.Stream, b []byte, n int, message bool) int {
	if message {
		n = s.ReadMessage(b)
	} else if n += s.Read(b[n:]); n == 0 {
		return 0
	}
	c.accountRead(n)
	if s.CreditDue() && c.closing.Phase < closing.Lingering {
		c.Push()
	}
	return n
}

// StreamReadEnd returns why nothing more can be read, once nothing can; nil if more may
// arrive.
func (c *Session) StreamReadEnd(s *streams.Stream) error {
	if err := s.ReadEnd(); err != nil {
		s.ReadDone()
		c.kickStreams() // the stream may be over
		return err
	}
	if c.closing.Phase >= closing.Ended && c.closing.err == nil {
		return net.ErrClosed
	}
	return c.reason(c.closing.err)
}

// StreamsEnd returns why the session has ended all streams; nil if it has not.
func (c *Session) StreamsEnd() error {
	switch {
	case c.closing.err != nil:
		return c.reason(c.closing.err)
	case c.closing.Read == closing.ReadClosed:
		return c.reason(ErrPeerClosed)
	case c.closing.Caller != closing.Uses:
		return net.ErrClosed
	}
	return nil
}

// kickStreams sends what the call of an application has made due, and accounts
// what it has dropped.
func (c *Session) kickStreams() {
	if c.closing.Phase >= closing.Ended {
		c.account()
		return
	}
	c.Push()
}
