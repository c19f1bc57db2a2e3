package machine

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/stats"
	"github.com/stretchr/testify/require"
)

// streamPart is one segment of a message.
type streamPart struct {
	n    uint64
	part uint32
}

// testHost is a host that sends numbered messages, and keeps account of what
// arrives and of what becomes of its own.
type testHost struct {
	t         testing.TB
	k         *KCP
	queue     []streamPart // to be sent
	yields    bool         // to every other segment of Send
	yielded   bool
	keeps     bool // what waits may not be taken out of the queue
	tags      map[uint64]*streams.Tag
	numbers   map[*streams.Tag]uint64
	queued    map[uint64]int // segments of a message that the machine has had
	acked     map[uint64]int
	abandoned map[uint64]bool
	got       map[streamPart]bool
	skipped   map[uint64]int // segments that arrived without their content
}

func newTestHost(t testing.TB, k *KCP) *testHost {
	h := &testHost{
		t: t, k: k, tags: make(map[uint64]*streams.Tag), numbers: make(map[*streams.Tag]uint64),
		queued: make(map[uint64]int), acked: make(map[uint64]int),
		abandoned: make(map[uint64]bool), got: make(map[streamPart]bool), skipped: make(map[uint64]int),
	}
	k.hooks.Host = h
	k.Enable(FeatureStreams)
	return h
}

// payload returns what a segment carries.
func (p streamPart) payload() []byte {
	b := binary.LittleEndian.AppendUint64(nil, p.n)
	b = binary.LittleEndian.AppendUint32(b, p.part)
	return append(b, bytes.Repeat([]byte{byte(p.n) ^ byte(p.part)}, int((p.n*131+uint64(p.part)*17)%160))...)
}

func (*testHost) OnSignal(wire.Signal, []byte) bool { return false }
func (*testHost) SignalPayload(wire.Code) []byte    { return nil }
func (*testHost) TakesStreams() bool                { return true }
func (*testHost) LimitedBy(stats.Limit)             {}
func (h *testHost) StreamsWait() streams.Waiting    { return streams.Waiting{Some: len(h.queue) > 0} }

func (h *testHost) OnStream(payload []byte) {
	s, data, ok := streams.Decode(payload)
	if !ok || len(data) < 12 && s.Kind == streams.Data {
		h.t.Fatalf("bad stream segment %x", payload)
	}
	if s.Kind == streams.Abandon {
		h.skipped[uint64(s.MID)]++
		return
	}
	p := streamPart{binary.LittleEndian.Uint64(data), binary.LittleEndian.Uint32(data[8:])}
	if h.got[p] || !bytes.Equal(p.payload(), data) {
		h.t.Fatalf("%+v arrived as %x, before: %v", p, data, h.got[p])
	}
	h.got[p] = true
}

func (h *testHost) Pull(plain bool) (*streams.Tag, []byte, bool) {
	if h.yielded = plain && h.yields && !h.yielded; h.yielded || len(h.queue) == 0 {
		return nil, nil, false
	}
	p := h.queue[0]
	h.queue = h.queue[1:]
	header := streams.Header{ID: 1, Kind: streams.Data, End: true, MID: Seq(p.n)}
	b := append(header.Append(nil), p.payload()...)
	h.queued[p.n]++
	buf := h.k.NewBuffer(len(b))
	copy(buf[len(buf)-len(b):], b)
	return h.tags[p.n], buf, true
}

func (h *testHost) SegmentAcked(t *streams.Tag) {
	if !t.OfSession {
		h.acked[h.numbers[t]]++
	}
}

func (h *testHost) GivingUp() (drop, abandon bool) { return !h.keeps, true }

// AbandonedUpTo knows nothing.
func (*testHost) AbandonedUpTo(*streams.Tag) (Seq, bool) { return 0, false }

// AbandonedMessage gives up the rest of a message.
func (h *testHost) AbandonedMessage(t *streams.Tag) {
	if t.OfSession {
		return
	}
	n := h.numbers[t]
	h.abandoned[n] = true
	h.queue = slices.DeleteFunc(h.queue, func(p streamPart) bool { return p.n == n })
}

// check holds what the host knows of its messages against the machine.
func (h *testHost) check() {
	flight, size := 0, 0
	for n, tag := range h.tags {
		if h.acked[n]+int(tag.InFlight) != h.queued[n] {
			h.t.Fatalf("message %d: %d segments, %d acknowledged, %d in flight", n, h.queued[n], h.acked[n], tag.InFlight)
		}
		flight += int(tag.InFlight)
	}
	k := h.k
	held := k.out.held
	for s := range k.segments() {
		if s.ofStream() {
			size += len(s.data)
			flight--
		}
		held -= s.grains()
	}
	if held != 0 {
		h.t.Fatalf("%d bytes of memory of segments too many", int32(held)*memoryGrain)
	}
	if l := k.Load(); flight != 0 || size != l.StreamBytes || l.StreamSegments > l.Segments {
		h.t.Fatalf("%d segments too many, %d bytes; counted are %+v", flight, size, l)
	}
}

// A payload that does not fit into a packet stays away from its signal.
func TestPayloadsOfSignalsFit(t *testing.T) {
	k := New(1, func([]byte) {})
	k.hooks.Host = payloadHost{newTestHost(t, k)}
	s := wire.Signal{Code: wire.Close, SN: 1}
	for room, want := range map[int]int{100: 100, 99: 0} {
		k.cfg.mtu = wire.HeaderSize + room
		require.Len(t, k.signalPayload(s), want)
	}
}

// payloadHost has a payload of 100 bytes for signals.
type payloadHost struct{ *testHost }

func (payloadHost) SignalPayload(wire.Code) []byte { return make([]byte, 100) }
