package kcp

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/stats"
)

// badStreamCase is what a peer sends that it should not, as payloads of stream
// segments, and what comes of it.
type badStreamCase struct {
	name     string
	segments [][]byte
	code     uint64 // with which stream 1 is reset, at both ends; 0: it is not
	drops    uint64 // counted by the receiver
	atSender uint64 // and by the end that has sent them
	streams  int    // that the receiver has more than before
	readErr  error  // what the receiver's Read of stream 1 returns; nil: it does not fail
}

// badData returns a whole message of stream 1, or what change makes of it.
func badData(change func(h *streams.Header), n int) []byte {
	h := streams.Header{ID: 1, Kind: streams.Data, End: true}
	change(&h)
	return append(h.Append(nil), make([]byte, n)...)
}

// badMessage returns a whole message of stream 1.
func badMessage(mid machine.Seq) []byte { return badData(func(h *streams.Header) { h.MID = mid }, 1) }

// badPart returns a fragment of message 1 of stream 1.
func badPart(fsn uint32, end bool) []byte {
	return badData(func(h *streams.Header) { h.Part, h.End, h.FSN, h.MID = true, end, fsn, 1 }, 10)
}

// badControl returns a segment of stream 1 without data.
func badControl(h streams.Header) []byte {
	h.ID = 1
	return h.Append(nil)
}

func badFin(n machine.Seq) []byte { return badControl(streams.Header{Kind: streams.Fin, MID: n}) }

func badAbandon(mid machine.Seq, size uint16) []byte {
	return badControl(streams.Header{Kind: streams.Abandon, MID: mid, Size: size})
}

// badAbandonAll returns an ABANDON of all messages up to mid.
func badAbandonAll(mid machine.Seq) []byte {
	return badControl(streams.Header{Kind: streams.Abandon, End: true, MID: mid, Size: streams.NoSegment})
}

// badCredit returns n messages, eight of which use up the credit of stream 1; or, if
// parts, fragments of one.
func badCredit(n int, parts bool) (all [][]byte) {
	for i := range n {
		all = append(all, badData(func(h *streams.Header) {
			if h.MID = machine.Seq(i); parts {
				h.MID, h.Part, h.End, h.FSN = 0, true, false, uint32(i)
			}
		}, streams.InitialCredit/64-streams.SegmentCost))
	}
	return all
}

// badAbandons returns an ABANDON of each of n messages of which nothing arrives
// before, and with their DATA that, too.
func badAbandons(n int, data bool) (all [][]byte) {
	for i := range n {
		all = append(all, badAbandon(machine.Seq(i+1), streams.NoSegment))
	}
	for i := range n {
		if data {
			all = append(all, badData(func(h *streams.Header) { h.MID, h.Part, h.End = machine.Seq(i+1), true, false }, 0))
		}
	}
	return all
}

// ofUnknown returns a segment of each kind of a stream that the peer has not
// opened: one of the receiver's, and one of the peer's without options.
func ofUnknown() (all [][]byte) {
	for kind := range streams.Kinds {
		if kind != streams.Open {
			all = append(all, (&streams.Header{ID: 2, Kind: kind, End: kind == streams.Data}).Append(nil),
				(&streams.Header{ID: 99, Kind: kind, End: kind == streams.Data}).Append(nil))
		}
	}
	return append(all, (&streams.Header{ID: 2, Kind: streams.Open, Opens: true}).Append(nil))
}

// opening returns the segments that open n streams of the peer from number 5 on.
func openingOf(n int) (all [][]byte) {
	for i := range uint32(n) {
		all = append(all, badData(func(h *streams.Header) { h.ID, h.Opens = 5+2*i, true }, 3))
	}
	return all
}

var badStreamCases = []badStreamCase{
	{name: "malformed", segments: [][]byte{{1, 0, 0, 0, 99}, {1, 0, 0, 0}, {}}, drops: 3},
	{name: "unknown stream", segments: ofUnknown(), drops: 13},
	{name: "id far ahead", segments: [][]byte{badData(func(h *streams.Header) { h.ID, h.Opens = 1<<32-1, true }, 1)}, drops: 1},
	{name: "priority", segments: [][]byte{badData(func(h *streams.Header) { h.ID, h.Opens, h.Params.Priority = 5, true, 8 }, 1)}, drops: 1},
	{name: "as many streams as allowed", segments: openingOf(2), streams: 2},
	// The peer did not open what is refused here, so it drops what refuses it.
	{name: "more streams than allowed", segments: openingOf(9), streams: 2, atSender: 7},

	{name: "credit used up", segments: badCredit(64, false)},
	{name: "credit exceeded", segments: badCredit(65, false), code: StreamViolation, drops: 1},
	{name: "message beyond limits", segments: badCredit(64, true), code: StreamTooLarge, drops: 1},

	{name: "one message twice", segments: [][]byte{badMessage(1), badMessage(1)}, code: StreamViolation, drops: 1},
	{name: "message too far ahead", segments: [][]byte{badMessage(streams.MaxMessagesAhead + 1)}, code: StreamViolation, drops: 1},
	{name: "message half the circle ahead", segments: [][]byte{badMessage(1 << 31)}, code: StreamViolation, drops: 1},
	{name: "old message", segments: [][]byte{badMessage(1<<32 - 1)}},
	{name: "one fragment twice", segments: [][]byte{badPart(1, false), badPart(1, false)}, code: StreamViolation, drops: 1},
	{name: "two ends", segments: [][]byte{badPart(1, true), badPart(2, true)}, code: StreamViolation, drops: 1},
	{name: "fragment behind the end", segments: [][]byte{badPart(1, true), badPart(2, false)}, code: StreamViolation, drops: 1},
	{name: "end before a fragment", segments: [][]byte{badPart(5, false), badPart(1, true)}, code: StreamViolation, drops: 1},
	{name: "last fragment there is", segments: [][]byte{badPart(1<<32-1, false)}, code: StreamViolation, drops: 1},
	{name: "fragment of a whole message", segments: [][]byte{badMessage(1), badPart(1, false)}, code: StreamViolation, drops: 1},

	{name: "data after FIN", segments: [][]byte{badFin(1), badMessage(1)}, code: StreamViolation, drops: 1},
	{name: "FIN before data", segments: [][]byte{badMessage(3), badFin(3)}, code: StreamViolation, drops: 1},
	{name: "FIN far ahead", segments: [][]byte{badFin(1 << 31)}, code: StreamViolation, drops: 1},
	{name: "another FIN", segments: [][]byte{badFin(5), badFin(6)}, code: StreamViolation, drops: 1},
	{name: "FIN again", segments: [][]byte{badFin(0), badFin(0)}, readErr: io.EOF},
	{name: "data after RESET", segments: [][]byte{badControl(streams.Header{Kind: streams.Reset, Code: 5}), badMessage(0), badFin(0)}, readErr: &StreamError{Code: 5, Remote: true}},

	{name: "abandoned far ahead", segments: [][]byte{badAbandon(1<<31, streams.NoSegment)}, code: StreamViolation, drops: 1},
	{name: "abandoned after FIN", segments: [][]byte{badFin(1), badAbandon(1, streams.NoSegment)}, code: StreamViolation, drops: 1},
	{name: "abandoned when delivered", segments: [][]byte{badMessage(0), badAbandon(0, streams.NoSegment), badAbandon(0, 7)}},
	{name: "abandoned when complete and early", segments: [][]byte{badMessage(1), badAbandon(1, streams.NoSegment), badMessage(0)}},
	{name: "abandoned beyond the credit", segments: [][]byte{badAbandon(0, 65534)}, code: StreamViolation, drops: 1},
	{name: "abandoned twice", segments: [][]byte{badAbandon(1, streams.NoSegment), badAbandon(1, streams.NoSegment)}},
	{name: "abandoned, as many as credit", segments: badAbandons(streams.InitialCredit/streams.SegmentCost, false)},
	{name: "abandoned before they arrive", segments: badAbandons(streams.InitialCredit/streams.SegmentCost, true)},
	{name: "more abandoned than credit", segments: badAbandons(streams.InitialCredit/streams.SegmentCost+1, false), code: StreamViolation, drops: 1},
	{name: "another beside as many abandoned", segments: append(badAbandons(streams.InitialCredit/streams.SegmentCost, false), badMessage(999)), code: StreamViolation, drops: 1},
	{name: "all abandoned far ahead", segments: [][]byte{badAbandonAll(streams.MaxMessagesAhead + 1)}, code: StreamViolation, drops: 1},
	{name: "all abandoned half the circle ahead", segments: [][]byte{badAbandonAll(1 << 31)}, code: StreamViolation, drops: 1},
	{name: "all abandoned after FIN", segments: [][]byte{badFin(2), badAbandonAll(2)}, code: StreamViolation, drops: 1},
	{name: "all abandoned again", segments: [][]byte{badAbandonAll(9), badAbandonAll(9), badAbandonAll(3), badAbandon(3, 7)}},
	{name: "fragment of an abandoned message", segments: [][]byte{badAbandon(1, streams.NoSegment), badPart(0, false)}},

	{name: "credit backwards", segments: [][]byte{badControl(streams.Header{Kind: streams.Credit, Limit: 1})}},
	{name: "credit half the circle ahead", segments: [][]byte{badControl(streams.Header{Kind: streams.Credit, Limit: 1<<31 + 65536})}},
}

// What a peer should not send is a counted drop, or resets its stream with the
// reason. It is acknowledged all the same. Nothing else is disturbed: neither the
// accounts of another stream and of the session, nor what they carry.
func TestBadStreamSegments(t *testing.T) {
	t.Parallel()
	long(t)
	for _, tc := range badStreamCases {
		t.Run(tc.name, func(t *testing.T) {
			inWorld(t, 10, clean, func(t *testing.T, w *world) {
				a, b, _ := w.pair(nil, &Config{Limits: Limits{MaxStreams: 4}, StreamReceiveBuffer: streams.InitialCredit})
				s, r := streamPair(t, a, b, nil)
				require.EqualValues(t, 1, s.ID())
				other, peer := streamPair(t, a, b, nil)
				writeAll(t, other, content(3, 5000))
				writeAll(t, a, content(4, 5000))
				time.Sleep(time.Second)
				before, figures := peer.Stats(), figuresOf(b)
				received := b.Stats().BytesReceived
				n := 0
				for _, p := range tc.segments {
					a.sendRaw(p)
					n += len(p)
				}
				time.Sleep(time.Second)
				st := a.Stats()
				require.Zero(t, st.InFlight+st.Queued, "they are acknowledged")
				require.Equal(t, stats.Drops{Stream: tc.drops}, b.Stats().Dropped)
				require.Equal(t, stats.Drops{Stream: tc.atSender}, st.Dropped)
				tc.checkReset(t, s, r)

				require.Equal(t, before, peer.Stats())
				require.GreaterOrEqual(t, b.Stats().BytesReceived, received+uint64(n))
				now := figuresOf(b)
				opened := tc.streams
				require.Equal(t, figures.fromPeer+opened, now.fromPeer)
				if tc.code != 0 {
					opened-- // stream 1 is over, and counts until the application closes it
					_ = r.Close()
					require.Equal(t, figures.fromPeer+opened, figuresOf(b).fromPeer)
				}
				require.Equal(t, figures.streams+opened, now.streams)
				require.Zero(t, now.refused+now.ahead+now.awaited)
				receive(t, peer, content(3, 5000))
				receive(t, b, content(4, 5000))
				bothWays(t, other, peer, content(1, 100000), content(2, 100000))
				bothWays(t, a, b, content(1, 20000), content(2, 20000))
				if tc.streams == 0 {
					more, accepted := streamPair(t, a, b, nil)
					bothWays(t, more, accepted, content(5, 20000), content(6, 20000))
				}
			})
		})
	}
}

// checkReset checks what has become of stream 1, of which s is the sender's end.
func (tc *badStreamCase) checkReset(t *testing.T, s, r *Stream) {
	if tc.code != 0 {
		_, err := r.Write([]byte{1})
		wantReset(t, err, tc.code, false)
		_, err = s.Write([]byte{1})
		wantReset(t, err, tc.code, true)
		require.Zero(t, r.Stats().ReadBuffered)
		return
	}
	writeAll(t, r, []byte{1})
	receive(t, s, []byte{1})
	if tc.readErr != nil {
		_, err := r.Read(make([]byte, 1))
		require.ErrorContains(t, err, tc.readErr.Error())
	}
}

// sendRaw sends a stream segment with this payload.
func (c *Conn) sendRaw(payload []byte) {
	c.mu.Lock()
	defer c.unlock()
	buf := c.session.Inside().Machine().NewBuffer(len(payload))
	copy(buf[len(buf)-len(payload):], payload)
	c.session.Inside().Machine().QueueStream(new(streams.Tag), buf)
	c.session.StreamTable() // which hears of the acknowledgement
	c.session.Push()
}
