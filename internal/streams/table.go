package streams

import (
	"maps"
	"net"

	"github.com/arqnet/kcp/internal/container"
)

const (
	// MaxIDsAhead is how far ahead of the oldest stream that the peer has not
	// opened yet its ids may be. They leave in order, and not more of them than
	// the receive window has segments can arrive before it.
	MaxIDsAhead = 1 << 16
	// manyStreams is how many streams a table has held when its memory is worth
	// giving back.
	manyStreams = 64
	// maxRefusals is how many streams may wait to be refused. While mostRefusing
	// refusals and limits are not acknowledged, others wait: the peer causes them, and
	// may withhold that.
	maxRefusals  = 4096
	mostRefusing = 64
	// BytesHeld is what a stream takes in memory beside what has arrived.
	BytesHeld = 768
)

// Table is the streams of a session. Init prepares it.
type Table struct {
	Counts Counts // changed by the table alone

	host    Host
	limits  Limits
	streams map[uint32]*Stream
	most    int                // streams at a time since the map was made
	unread  map[uint32]*Stream // over, and out of streams, with data to be read; nil: none
	backlog []*Stream          // opened by the peer, for Accept; oldest first
	sched   scheduler

	next     uint32                         // id of the next stream of this end; 0: not decided yet
	theirs   container.SparseSet            // of the peer's streams: those that have been opened
	fromPeer int                            // streams of the peer that are not over, or that the application is not done with
	openings []*Stream                      // opened by this end, and the peer may not know of it
	refused  []uint32                       // ids of streams to be refused
	openers  container.List[Opener]         // calls that wait to open a stream, oldest first
	allowed  uint32                         // streams that this end may open in all, by the last MaxStreams; 0: none came
	told     uint32                         // streams that the peer may open in all, by the last MaxStreams; 0: none was sent
	tell     bool                           // MaxStreams is to be sent
	closed   bool                           // Close was called
	control  Tag                            // of segments that belong to no stream of the table
	held     int                            // bytes of memory held for received messages
	lagging  int                            // streams of whose buffer more than half was not read
	grown    int                            // bytes of receive buffers beyond Limits.ReceiveBuffer
	queued   int                            // bytes of memory of messages that wait to be sent
	ready    int                            // part of queued: of streams that have credit for some
	writers  [queues]container.List[Writer] // calls that wait for room of the session, oldest first
	blocked  int                            // calls that wait for room, of the session or of a stream
	waits    uint64                         // calls that have waited
	shown    int                            // bytes of the largest credit that the peer has given
	headroom int                            // bytes in front of the header of a segment
	failed   bool                           // the session has ended, or delivers nothing more

	pulled    *Tag   // of the segment that Pull is about to return
	pulledBuf []byte // and its buffer

	segments    spares     // for reuse: buffers of received segments
	list        []received // for reuse, empty
	sparePiece  *piece     // for reuse, chained by next
	sparePieces int        // their number
	expires     int64      // when Purge is due, on the machine's clock; 0: not before more is written
}

// Init prepares an empty table.
func (t *Table) Init(host Host, limits Limits) {
	t.host, t.limits, t.streams = host, limits, make(map[uint32]*Stream)
}

// Open opens a stream of this end. The peer learns of it with its first segment, or
// after Announce.
func (t *Table) Open(params Params) (*Stream, error) {
	t.decide()
	if t.next > 1<<32-3 {
		return nil, errIDs
	}
	s := t.add(t.next, params)
	t.next += 2
	t.Counts.Opened++
	t.openings = append(t.openings, s)
	return s, nil
}

// Accept returns the oldest stream that the peer has opened; nil if there is none.
func (t *Table) Accept() *Stream {
	if len(t.backlog) == 0 {
		return nil
	}
	s := t.backlog[0]
	t.backlog[0] = nil
	if t.backlog = t.backlog[1:]; len(t.backlog) == 0 {
		t.backlog = nil
	}
	return s
}

// Waiting returns how many streams Accept would return.
func (t *Table) Waiting() int { return len(t.backlog) }

// decide decides, once, which ids are this end's: next keeps its parity. If
// that changed, a stream of this end could take the place of one of the peer's in
// the table, whose calls would then never return.
func (t *Table) decide() {
	if t.next == 0 {
		t.next = t.host.FirstID()
	}
}

// ours reports whether streams with this id are opened by this end.
func (t *Table) ours(id uint32) bool {
	t.decide()
	return id&1 == t.next&1
}

// Held returns the bytes of memory of what has arrived and was not read.
func (t *Table) Held() int { return t.held }

// Memory returns the bytes of memory that streams take because of the peer: Held, the
// streams that the peer has opened, ids, and what is kept for reuse.
func (t *Table) Memory() int {
	return t.held + t.spareMemory() + t.fromPeer*BytesHeld + t.theirs.Size() + 4*cap(t.refused)
}

// Queued returns the bytes of memory of what waits to be sent.
func (t *Table) Queued() int { return t.queued }

// Len returns the number of streams that are not over.
func (t *Table) Len() int { return len(t.streams) }

// Counts counts the streams of a table. Package stats says what each count is.
type Counts struct{ Opened, Accepted, Refused, Ended, Reset uint64 }

// Figures are what a table holds.
type Figures struct {
	Streams, FromPeer, Backlog, Openings, Refused int
	Writers                                       int // calls that wait for room of the session
	Blocked                                       int // calls that wait for room
	Awaiting                                      int // messages that await a receipt
	IDs                                           int // bytes for ids of the peer's streams
	Held, Queued, Ready, Grown                    int // bytes
}

// Figures returns what the table holds. It walks all streams: it is for tests.
func (t *Table) Figures() Figures {
	f := Figures{
		Streams: len(t.streams), FromPeer: t.fromPeer, Backlog: len(t.backlog),
		Openings: len(t.openings), Refused: len(t.refused), IDs: t.theirs.Size(),
		Held: t.held, Queued: t.queued, Ready: t.ready, Grown: t.grown, Blocked: t.blocked,
	}
	for _, s := range t.streams {
		f.Awaiting += s.out.awaiting.Len()
	}
	for half := range t.writers {
		f.Writers += t.writers[half].Len(linksOf)
	}
	return f
}

// add puts a stream into the table.
func (t *Table) add(id uint32, params Params) *Stream {
	s := t.host.NewStream(&params)
	s.table, s.id, s.params = t, id, params
	s.out.limit, s.in.limit, s.in.window = InitialCredit, InitialCredit, InitialCredit
	t.streams[id] = s
	t.most = max(t.most, len(t.streams))
	return s
}

// Announce lets the peer learn of the streams that it may not know of.
func (t *Table) Announce() {
	for i, s := range t.openings {
		t.openings[i] = nil
		if !s.out.announced && !s.gone {
			s.control(dueOpen)
		}
	}
	t.openings = nil
}

// Input takes the payload of a stream segment. It is valid only during the call.
// If refuse is set, no stream is opened. A bad segment is dropped, and counted.
func (t *Table) Input(payload []byte, refuse bool) {
	h, data, ok := Decode(payload)
	switch {
	case !ok:
		t.host.Dropped()
		return
	case h.Kind == MaxStreams:
		t.inputLimit(h.Streams)
		return
	}
	s := t.streams[h.ID]
	if s == nil {
		if s = t.opened(&h, refuse); s == nil {
			return
		}
	}
	s.input(&h, data)
}

// opened returns the new stream that h opens; nil if it opens none. A stream that
// was known before is over: what is still on its way is dropped.
func (t *Table) opened(h *Header, refuse bool) *Stream {
	if t.ours(h.ID) {
		if h.ID >= t.next {
			t.host.Dropped()
		}
		return nil
	}
	n := (h.ID - 1) / 2
	switch {
	case t.theirs.Has(n):
		return nil
	case !h.Opens || h.Params.Priority < MinPriority || h.Params.Priority > MaxPriority || !t.theirs.Add(n, MaxIDsAhead):
		t.host.Dropped()
		return nil
	case refuse || t.fromPeer >= t.limits.Streams:
		t.Counts.Refused++
		t.noteLimit()
		if len(t.refused) < maxRefusals && !t.failed {
			t.refused = append(t.refused, h.ID)
		}
		return nil
	}
	s := t.add(h.ID, h.Params)
	s.slot = true
	t.fromPeer++
	t.Counts.Accepted++
	t.backlog = append(t.backlog, s)
	t.noteLimit()
	t.host.Opened()
	return s
}

// Waiting is what waits on streams.
type Waiting struct {
	Some    bool // Pull would queue a segment
	Blocked bool // if not Some: a stream has more to send, and no credit
	Unread  bool // this end is behind with reading a stream
}

// Waits returns what waits.
func (t *Table) Waits() Waiting {
	return Waiting{t.sched.busy() || t.refuses(), t.sched.unsent > 0, t.lagging > 0}
}

// refuses reports whether a refusal, or MaxStreams, may be sent.
func (t *Table) refuses() bool {
	return (t.tell || len(t.refused) > 0) && t.control.InFlight < mostRefusing
}

// Busy reports whether messages wait that the peer takes, or control.
func (t *Table) Busy() bool { return t.sched.busy() }

// Unsent reports whether some stream has more to send, or FIN, be it without credit.
func (t *Table) Unsent() bool { return t.sched.unsent > 0 }

// Drained reports whether nothing waits on any stream.
func (t *Table) Drained() bool { return !t.sched.busy() && t.sched.unsent == 0 }

// Pull returns the segment that is sent next, and its message. ok is false if that is
// one of the session itself, of which plain says whether some wait, or if there is none.
func (t *Table) Pull(plain bool) (tag *Tag, buf []byte, ok bool) {
	if len(t.openings) > 0 {
		t.Announce()
	}
	if n := len(t.refused); t.refuses() && t.tell {
		t.pullLimit()
	} else if t.refuses() {
		id := t.refused[n-1]
		if t.refused = t.refused[:n-1]; n == 1 {
			t.refused = nil
		}
		t.segment(&t.control, &Header{ID: id, Kind: Reset, Code: Refused}, 0)
	}
	for t.pulled == nil && t.sched.busy() {
		s := t.sched.pick(plain, int32(t.host.SegmentPayload()))
		if s == nil {
			break
		}
		s.pull()
		t.sched.update(s)
	}
	tag, buf = t.pulled, t.pulledBuf
	t.pulled, t.pulledBuf = nil, nil
	return tag, buf, tag != nil
}

// segment lets Pull return a segment of tag, and returns its n bytes of data for the
// caller to fill in.
func (t *Table) segment(tag *Tag, h *Header, n int) []byte {
	var room [MaxHeader]byte
	header := h.Append(room[:0])
	buf := t.host.NewSegment(len(header) + n)
	copy(buf[len(buf)-n-len(header):], header)
	t.pulled, t.pulledBuf = tag, buf
	return buf[len(buf)-n:]
}

// retire removes s from the table once both its directions are over.
func (t *Table) retire(s *Stream) {
	if s.gone || !s.out.over() || !s.in.over() {
		return
	}
	s.gone = true
	t.Counts.Ended++
	if s.broken {
		t.Counts.Reset++
	}
	delete(t.streams, s.id)
	t.shrink()
	if s.in.waits() {
		if t.unread == nil {
			t.unread = make(map[uint32]*Stream)
		}
		t.unread[s.id] = s
	}
	t.sched.update(s)
	t.settle(s)
	s.Owner.Writable()
}

// settle takes s, which is over, out of the table's accounts: what its receive buffer has
// grown by, once all was read; and its place among the peer's streams, once the
// application is done with it, too. Else a peer could have any number of streams worked
// on, and any amount wait to be read, in streams that it ends at once (CVE-2023-44487).
func (t *Table) settle(s *Stream) {
	if !s.gone || s.in.waits() {
		return
	}
	if more := s.in.window - t.limits.ReceiveBuffer; more > 0 {
		s.in.window -= more
		t.grown -= more
	}
	if s.slot && s.done() {
		s.slot = false
		t.fromPeer--
		t.noteLimit()
	}
}

// shrink replaces a table of streams that has become much emptier: a map gives no
// memory back. A loop over the old one may go on.
func (t *Table) shrink() {
	if t.most < manyStreams || 8*len(t.streams) > t.most {
		return
	}
	t.most = len(t.streams)
	streams := make(map[uint32]*Stream, t.most)
	maps.Copy(streams, t.streams)
	t.streams = streams
}

// read records that nothing of s waits to be read any more.
func (t *Table) read(s *Stream) {
	if delete(t.unread, s.id); len(t.unread) == 0 {
		t.unread = nil
	}
	t.settle(s)
}

// Fail ends all streams with err: the session delivers nothing more. What has
// arrived can still be read.
func (t *Table) Fail(err error) {
	if t.failed {
		return
	}
	t.failed = true
	for _, s := range t.streams {
		s.dropUnsent(err)
	}
	t.openings, t.refused, t.tell = nil, nil, false
	t.sched = scheduler{}
	t.Compact()
	t.Wake()
}

// Failed reports whether Fail was called.
func (t *Table) Failed() bool { return t.failed }

// DropUnread drops what has arrived and was not read. ReadEnd returns err then.
func (t *Table) DropUnread(err error) {
	for _, s := range t.streams {
		s.endReading(err)
	}
	for _, s := range t.unread {
		s.endReading(err)
	}
}

// Wake wakes all calls that wait.
func (t *Table) Wake() {
	for _, s := range t.streams {
		s.Owner.Readable()
		s.Owner.Writable()
	}
	for _, s := range t.unread {
		s.Owner.Readable()
	}
	t.wakeOpeners()
	t.host.Opened()
}

// Close ends all streams: what was written is still to be sent. FIN follows on those that
// were finished before. If whole is set, it also does on those on which something was
// written, and no write was cut short: without FIN the peer cannot take them for whole.
func (t *Table) Close(whole bool) {
	t.closed, t.tell = true, false
	t.Announce()
	for _, s := range t.streams {
		s.in.stop = true
		s.endReading(net.ErrClosed)
		s.endWriting(whole)
		s.readDone, s.writeDone = true, true
		s.Owner.Writable()
		t.retire(s)
	}
	t.backlog, t.refused = nil, nil
	t.wakeOpeners()
	t.host.Opened()
}

// GiveUp drops all that waits, because of err, and reports whether some data did.
func (t *Table) GiveUp(err error) (dropped bool) {
	for _, s := range t.streams {
		if s.out.first != nil {
			dropped = true
			s.dropUnsent(err)
		}
		t.sched.remove(s)
	}
	return dropped
}
