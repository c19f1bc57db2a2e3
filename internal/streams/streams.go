// Package streams is the streams of a session as a state machine: what their segments
// mean, what is sent next, what can be read, and the memory that all of it takes (WIRE.md
// §5.9; compare RFC 9000 §2 to §4 and RFC 8260). Beside them it has the datagrams that
// wait to be read. It knows no lock, clock, socket or session.
//
// Segments go into Table.Input, and come out of Table.Pull. The state machine of the
// session, which sends and acknowledges them, tells Table.Acked and Table.GivenUp what
// has become of them. An application calls the methods of Stream. None of them waits:
// Owner is told when something can be read or written.
//
// The host's lock guards all of it.
package streams

// Where things are:
//
//	streams.go   Stream, what a Table asks of its Host, and tells an Owner
//	table.go     Table: opening, accepting, refusing, Input, Pull, the end of all
//	header.go    the header of a stream segment
//	schedule.go  which stream sends next: priorities, deficit round robin
//	send.go      what is written, cut into segments, acknowledged
//	receive.go   what arrives: reading, credit
//	limit.go     how many streams the peer may open (MAX_STREAMS)
//	order.go     what arrives out of order
//	partial.go   lifetimes, messages that are given up
//	tag.go       messages and their segments, receipts
//	room.go      how much may wait in all streams
//	spare.go     buffers for reuse
//	own.go       segments of the session itself beside streams

import (
	"errors"
	"net"
	"time"
)

// Limits are the configuration of a Table.
type Limits struct {
	Streams           int // that the peer may have at a time
	ReceiveBuffer     int // of a stream that is read, in bytes
	MostReceiveBuffer int // of one that grows
	WriteBuffer       int // of a stream
	MostShown         int // bytes of a receive buffer that a peer is believed to have
}

// Host is the session of a Table.
type Host interface {
	// NewSegment returns the buffer of a segment with a payload of n bytes, which are
	// its last, for Table to fill in.
	NewSegment(n int) []byte
	// GrowSegment returns a buffer of n bytes in all that begins as buf, in its place.
	GrowSegment(buf []byte, n int) []byte
	// FreeSegment takes back a buffer that is not sent.
	FreeSegment(buf []byte)
	// SegmentPayload returns the payload bytes of a full segment.
	SegmentPayload() int
	// Now returns the present on the machine's clock, in microseconds.
	Now() int64
	// RoundTrip returns when the last packet has arrived, since an epoch, and
	// the round-trip time; 0: not known.
	RoundTrip() (last, rtt time.Duration)
	// MemoryIsShort reports whether no receive buffer may grow.
	MemoryIsShort() bool
	// WriteBuffer returns how many bytes of memory may wait in all streams.
	WriteBuffer() int
	// FirstID returns the first id of this end's streams, 1 or 2. It is asked
	// once, and the answer is final.
	FirstID() uint32
	// PeerLimit returns how many streams the peer takes at first, at most MostAtFirst;
	// 0: it tells no limit, and gets none.
	PeerLimit() int

	// NewStream returns the memory of a new stream with these options. Its Owner
	// is set, and all else is zero.
	NewStream(p *Params) *Stream
	// Opened wakes calls that wait for Accept to return a stream: the peer has
	// opened one, or none will come.
	Opened()
	// Dropped is called for each segment that is bad.
	Dropped()
	// Error returns the error of a stream that was reset; see the codes.
	Error(code uint64, remote bool) error
	// Closed returns the error of a stream whose peer reads no more, without a code.
	Closed() error
	// Finish lets the receipt of t be called with err, and Fail the receipts of all in
	// a; see Receipts.
	Finish(t *Tag, err error)
	Fail(a *Awaiting, f Failure)
}

// Owner is what the application has of a stream. Both methods wake calls that
// wait, which then look why. Writable is also called when Stream.Ended returns an error
// for the first time.
type Owner interface {
	Readable()
	Writable()
}

// Codes of RESET and STOP that are not of an application, whose are below 1<<62.
const (
	Refused   uint64 = 1<<62 + iota // the peer has as many streams as it takes
	Violation                       // what arrived does not fit the rules
	TooLarge                        // a message does not fit into the receive buffer
)

var (
	// ErrAbandoned means that a message was given up.
	ErrAbandoned = errors.New("kcp: message abandoned")
	errIDs       = errors.New("kcp: all stream ids have been used")
)

// Stats are the figures of a stream.
type Stats struct {
	MessagesSent     uint64 // that have left the queue; pieces of a stream of bytes count, too
	MessagesReceived uint64 // complete
	BytesSent        uint64 // payload, without retransmissions
	BytesReceived    uint64
	Abandoned        uint64 // messages given up by this end
	Skipped          uint64 // messages given up by the peer, and not received
	Queued           int    // bytes that wait to be sent for the first time
	Unread           int    // bytes received and not read
	Window           int    // size of the receive buffer in bytes
}

// Stream is a stream of a Table.
type Stream struct {
	Owner Owner // set by Host.NewStream

	table     *Table
	id        uint32 // odd if the dialling end has opened it
	params    Params
	gone      bool // not in the table any more
	broken    bool // reset with a code other than 0, by either end
	slot      bool // one of Table.fromPeer
	readDone  bool // the application was told the end of what can be read, or reads no more
	writeDone bool // it has ended what it writes
	out       sendSide
	in        receiveSide
}

// ID returns the number of the stream. The dialling end's are odd.
func (s *Stream) ID() uint32 { return s.id }

// Params returns the options of the stream.
func (s *Stream) Params() Params { return s.params }

// Gone reports whether both directions are over.
func (s *Stream) Gone() bool { return s.gone }

// ReadDone says that the application knows why nothing more can be read.
func (s *Stream) ReadDone() {
	s.readDone = true
	s.table.settle(s)
}

// WriteDone says that the application writes no more, whatever has ended the stream
// before. Finish, CancelWrite and Reset say so, too.
func (s *Stream) WriteDone() {
	s.writeDone = true
	s.table.settle(s)
}

// done reports whether the application is done with the stream: it has ended what it
// writes, and knows the end of what it reads, or has read all before that.
func (s *Stream) done() bool {
	in := &s.in
	all := in.fin && in.over() && in.err == nil && !in.waits() && in.stats.MessagesReceived > 0
	return s.writeDone && (s.readDone || all)
}

// Ended returns why the stream has ended: it was reset, the peer reads no more, or both
// directions are over in order, which is net.ErrClosed; nil if it has not.
func (s *Stream) Ended() error {
	switch {
	case s.out.err != nil:
		return s.out.err
	case s.gone && s.in.err != nil:
		return s.in.err
	case s.gone:
		return net.ErrClosed
	}
	return nil
}

// Stats returns the figures of the stream.
func (s *Stream) Stats() Stats {
	st := s.in.stats
	st.Queued, st.Unread, st.Window = s.out.queued, s.in.bytes, s.in.window
	return st
}
