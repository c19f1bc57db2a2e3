package kcp

import (
	"container/list"
	"errors"
	"maps"
	"time"

	"github.com/arqnet/kcp/internal/sparse"
)

// capStreams in INFO announces that the sender takes stream segments (WIRE.md
// §5.9), capDialled that it has dialled the session.
const (
	capStreams = 8
	capDialled = 16
)

const (
	// openDelay is how long a new stream waits for its first message before the
	// peer learns of it by a segment of its own.
	openDelay = time.Millisecond
	// maxIDsAhead is how far ahead of the oldest stream that the peer has not
	// opened yet its ids may be. They leave in order, and not more of them than
	// the receive window has segments can arrive before it.
	maxIDsAhead = 1 << 16
	// manyStreams is how many streams a table has had when its memory is worth
	// giving back.
	manyStreams = 64
	// maxRefusals is how many streams may wait to be refused.
	maxRefusals = 4096
	// streamBytesHeld is what a stream takes in memory beside what has arrived.
	streamBytesHeld = 768
)

var errStreamIDs = errors.New("kcp: all stream ids have been used")

// streamTable is the streams of a session. Conn.mu guards it.
type streamTable struct {
	conn      *Conn
	streams   map[uint32]*Stream
	most      int                // streams at a time since the map was made
	unread    map[uint32]*Stream // over, and out of streams, with data to be read; nil: none
	backlog   []*Stream          // opened by the peer, for AcceptStream; oldest first
	canAccept notifier
	sched     streamScheduler

	next      uint32                 // id of the next stream of this end; 0: not decided yet
	theirs    sparse.Set             // of the peer's streams: those that have been opened
	fromPeer  int                    // streams of the peer in the table, or in the backlog
	openAt    time.Duration          // when openings leaves; 0: it is empty
	openings  []*Stream              // opened by this end, and the peer may not know of it
	refused   []uint32               // ids of streams to be refused
	control   outMessage             // of segments that belong to no stream of the table
	held      int                    // bytes of memory held for received messages
	grown     int                    // bytes of receive buffers beyond Config.StreamReceiveBuffer
	queued    int                    // bytes of memory of messages that wait to be sent
	ready     int                    // part of queued: those of streams that have credit for some
	writers   [roomClasses]list.List // streams with calls that wait for room of the session, oldest first
	failed    bool                   // the session has ended, or delivers nothing more
	closing   bool                   // Close waits for what is to be sent
	closeMark seq                    // snd_una at the last progress of that
	purgeAt   time.Duration          // when Close looks for messages whose lifetime is over
}

// streamTable returns c.streams, which it makes: most sessions have no streams.
func (c *Conn) streamTable() *streamTable {
	if c.streams == nil {
		t := &streamTable{conn: c, streams: make(map[uint32]*Stream)}
		t.canAccept.init(c)
		t.control.owner = &t.control
		c.streams = t
		c.kcp.startStreams()
	}
	return c.streams
}

// firstStream returns the first id of this end's streams. Those of the dialling
// end are odd. If both have dialled, those of the end with the smaller token are.
func (c *Conn) firstStream() uint32 {
	l := &c.hs
	odd := l.dialled
	if odd && l.capabilities&capDialled != 0 {
		odd = l.token < l.peerToken
	}
	if odd {
		return 1
	}
	return 2
}

// openLocked opens a stream of this end. Conn.mu is held.
func (t *streamTable) openLocked(params streamParams) (*Stream, error) {
	t.decideLocked()
	if t.next > 1<<32-3 {
		return nil, errStreamIDs
	}
	s := t.add(t.next, params)
	t.next += 2
	t.openings = append(t.openings, s)
	if t.openAt == 0 {
		t.openAt = t.conn.ep.now() + openDelay
	}
	return s, nil
}

// decideLocked decides, once, which ids are those of this end: t.next keeps its
// parity. If that changed, a stream of this end could take the place of one of
// the peer's in the table, whose calls would then never return.
func (t *streamTable) decideLocked() {
	if t.next == 0 {
		t.next = t.conn.firstStream()
	}
}

// oursLocked reports whether streams with this id are opened by this end.
func (t *streamTable) oursLocked(id uint32) bool {
	t.decideLocked()
	return id&1 == t.next&1
}

// memory returns the bytes of memory that streams take because of the peer: what
// has arrived and was not read, and until the session has ended, the streams that
// the peer has opened, and ids. What the application still has of them then is its own.
func (t *streamTable) memory() int {
	if t.conn.closing.state == stateEnded {
		return t.held
	}
	return t.held + (t.fromPeer+len(t.unread))*streamBytesHeld + t.theirs.Size() + 4*cap(t.refused)
}

// add puts a stream into the table.
func (t *streamTable) add(id uint32, params streamParams) *Stream {
	s := &Stream{conn: t.conn, id: id, params: params}
	s.canRead.init(t.conn)
	s.canWrite.init(t.conn)
	s.out.limit, s.in.limit, s.in.window = initialCredit, initialCredit, initialCredit
	t.streams[id] = s
	t.most = max(t.most, len(t.streams))
	return s
}

// announceLocked lets the peer learn of the streams that it may not know of.
func (t *streamTable) announceLocked() {
	t.openAt = 0
	for i, s := range t.openings {
		t.openings[i] = nil
		if !s.out.announced && !s.gone {
			s.controlLocked(ctlOpen)
		}
	}
	t.openings = nil
}

// takesStreams reports whether this end has told its peer that it takes stream
// segments, and knows which end opens which streams. Until then the machine
// drops and does not acknowledge them, so that the peer sends them again.
func (c *Conn) takesStreams() bool {
	return c.hs.kind == peerExtended && c.hs.tokensKnown() && c.ep.config.MaxStreams > 0
}

// tokensKnown reports whether peerToken remains what it is, if the peer is
// extended. If both ends have dialled, the peer's HELLO may come first, and may
// be forged, or of an earlier session; only WELCOME, which echoes our token,
// shows that. An end that was silent until then sends no HELLO, and gets no
// WELCOME.
func (l *handshakeState) tokensKnown() bool {
	return !l.dialled || l.welcomed || l.hello.signal.code == 0
}

// onStream is the state machine's hook for stream segments. A bad one is
// dropped, and counted.
func (c *Conn) onStream(payload []byte) {
	h, data, ok := decodeStream(payload)
	if !ok {
		c.drops().Stream++
		return
	}
	if c.closing.state != stateOpen {
		return // the peer does not wait for it
	}
	t := c.streamTable()
	s := t.streams[h.id]
	if s == nil {
		if s = t.openedLocked(&h); s == nil {
			return
		}
	}
	s.takeLocked(&h, data)
}

// openedLocked returns the new stream that h opens; nil if it opens none. A stream
// that was known before is over: what is still on its way is dropped.
func (t *streamTable) openedLocked(h *streamHeader) *Stream {
	c := t.conn
	if t.oursLocked(h.id) {
		if h.id >= t.next {
			t.dropLocked()
		}
		return nil
	}
	n := (h.id - 1) / 2
	switch {
	case t.theirs.Has(n):
		return nil
	case !h.opens || h.params.priority < minPriority || h.params.priority > maxPriority || !t.theirs.Add(n, maxIDsAhead):
		t.dropLocked()
		return nil
	case t.fromPeer >= c.ep.config.MaxStreams || c.closing.closed:
		if len(t.refused) < maxRefusals {
			t.refused = append(t.refused, h.id)
		}
		return nil
	}
	s := t.add(h.id, h.params)
	t.fromPeer++
	t.backlog = append(t.backlog, s)
	t.canAccept.Broadcast()
	return s
}

// dropLocked counts a bad stream segment.
func (t *streamTable) dropLocked() { t.conn.drops().Stream++ }

// retireLocked removes s from the table once both its directions are over.
func (t *streamTable) retireLocked(s *Stream) {
	if s.gone || !s.out.over() || !s.in.over() {
		return
	}
	s.gone = true
	t.grown -= max(s.in.window-t.conn.ep.config.StreamReceiveBuffer, 0)
	delete(t.streams, s.id)
	t.shrinkLocked()
	if s.in.waits() {
		if t.unread == nil {
			t.unread = make(map[uint32]*Stream)
		}
		t.unread[s.id] = s
	}
	t.sched.update(s)
	if s.accepted && !t.oursLocked(s.id) {
		t.fromPeer--
	}
}

// shrinkLocked replaces a table of streams that has become much emptier: a map
// gives no memory back. A loop over the old one may go on.
func (t *streamTable) shrinkLocked() {
	if t.most < manyStreams || 8*len(t.streams) > t.most {
		return
	}
	t.most = len(t.streams)
	streams := make(map[uint32]*Stream, t.most)
	maps.Copy(streams, t.streams)
	t.streams = streams
}

// acceptedLocked takes note that the application has s. Until then s counts as
// one of the peer's, even if it is over: else a peer could fill the backlog with
// streams that it ends at once.
func (t *streamTable) acceptedLocked(s *Stream) {
	if s.accepted = true; s.gone {
		t.fromPeer--
	}
}

// failStreams ends all streams with err, because the session has ended, or
// delivers nothing more. What has arrived can still be read.
func (c *Conn) failStreams(err error) {
	t := c.streams
	if t == nil || t.failed {
		return
	}
	t.failed = true
	if c.closing.state == stateEnded {
		t.closing = false // else advanceClose goes on with Close
	}
	if err == nil {
		err = ErrNotDelivered
	}
	for _, s := range t.streams {
		s.dropUnsentLocked(err)
	}
	t.openings, t.refused, t.openAt = nil, nil, 0
	t.sched = streamScheduler{}
	c.wakeStreams()
}

// readLocked takes note that nothing of s waits to be read any more.
func (t *streamTable) readLocked(s *Stream) {
	if delete(t.unread, s.id); len(t.unread) == 0 {
		t.unread = nil
	}
}

// dropStreams drops what has arrived on streams and was not read. Calls that read
// return err then.
func (c *Conn) dropStreams(err error) {
	if c.streams == nil {
		return
	}
	for _, s := range c.streams.streams {
		s.endReadingLocked(err)
	}
	for _, s := range c.streams.unread {
		s.endReadingLocked(err)
	}
}

// wakeStreams wakes all calls that wait for streams, which then look why.
func (c *Conn) wakeStreams() {
	if c.streams == nil {
		return
	}
	for _, s := range c.streams.streams {
		s.canRead.Broadcast()
		s.canWrite.Broadcast()
	}
	c.streams.canAccept.Broadcast()
}

// streamsUnsent reports whether messages of streams wait that the peer takes.
func (c *Conn) streamsUnsent() bool {
	return c.streams != nil && c.closing.state == stateOpen && c.streams.sched.busy()
}
