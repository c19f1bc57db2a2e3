package recovery

import (
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/container"
	"github.com/arqnet/kcp/internal/rulebook"
)

// After a duplicate segment 400 ACKs are repeated, and 4000 after many.
func TestRepeatLength(t *testing.T) {
	var r Repeater
	for i := range 20 {
		require.Equal(t, min(400*i, 4000), r.left)
		r.Duplicate()
	}
	for range 4001 {
		r.Note(Ack{}, 0)
	}
	require.Len(t, r.items, 4000)
	var none *Repeater
	none.Note(Ack{}, 0)
	require.Equal(t, repeatedBytes*cap(r.items), r.Memory())
	require.EqualValues(t, unsafe.Sizeof(repeated{}), repeatedBytes)
}

// An ACK is repeated with the second flush after its own, unless una covers it by then,
// or it is too old.
func TestRepeat(t *testing.T) {
	r := RepeatFor(3)
	now := container.Serial(1<<32 - 5)
	for sn := range container.Serial(4) {
		r.Note(Ack{SN: sn}, now+3*sn)
	}
	require.Len(t, r.items, 3, "it was for three")
	flush := func(nxt, now container.Serial) (again []container.Serial) {
		r.Repeat(nxt, now, func(a Ack) { again = append(again, a.SN) })
		return again
	}
	require.Empty(t, flush(0, now+6), "they leave for the first time")
	require.Equal(t, []container.Serial{2}, flush(1, now+14), "una covers 0, and 1 is 11 ms old")
	require.Empty(t, flush(1, now+14))
	r = RepeatFor(2)
	r.Note(Ack{SN: 4}, now)
	r.Note(Ack{SN: 5}, now)
	flush(0, now+1)
	require.Equal(t, []container.Serial{5}, flush(5, now+2), "una covers the other")
}

// path is one with a round trip of srtt milliseconds.
func path(now container.Serial, srtt uint32) AckPath { return AckPath{Now: now, SRTT: srtt} }

// An ACK waits for a quarter of a round trip, 2 to 25 ms, from the first segment on.
func TestDelay(t *testing.T) {
	for srtt, want := range map[uint32]container.Serial{0: 2, 1: 2, 40: 10, 100: 25, 1000: 25} {
		var p DelayedAck
		p.Received(Arrival{Bytes: 1, Fresh: true, Next: true, Alone: true}, path(1000, srtt))
		p.Received(Arrival{Bytes: 1, Fresh: true, Next: true}, path(1020, srtt))
		p.Decide(1020, srtt, false, 1000, 0)
		require.Equal(t, 1000+want, p.Due, "srtt %d", srtt)
		require.False(t, p.Urgent)
	}
}

// Four segments or 256 bytes leave sooner, and four full segments, or half of the window,
// at once.
func TestDelayOfMuch(t *testing.T) {
	for _, test := range []struct {
		segments, bytes int
		share           uint32
		due             container.Serial
		urgent          bool
	}{
		{3, 10, 0, 1025, false}, {4, 10, 0, 1005, false}, {1, 255, 0, 1025, false}, {1, 256, 0, 1005, false},
		{3, 1000, 0, 1005, false}, {4, 1000, 0, 1025, true}, {2, 10, 5, 1025, false}, {2, 10, 4, 1025, true},
	} {
		var p DelayedAck
		for i := range test.segments {
			p.Received(Arrival{Bytes: test.bytes, Fresh: true, Next: true, Alone: i == 0}, path(1000, 100))
		}
		p.Decide(1000, 100, false, 1000, test.share)
		require.Equal(t, test.due, p.Due, "%+v", test)
		require.Equal(t, test.urgent, p.Urgent, "%+v", test)
	}
}

// Behind a new gap three packets are acknowledged at once. What fills the gap is too,
// with its own ts.
func TestGap(t *testing.T) {
	var p DelayedAck
	at := path(1000, 100)
	arrive := func(sn container.Serial, next, gap bool) bool {
		p.Urgent = false
		p.Received(Arrival{Ack: Ack{SN: sn, TS: 7 + sn}, Bytes: 1, Fresh: true, Next: next, Alone: true, Gap: gap}, at)
		p.Decide(1000, 100, gap, 1000, 0)
		return p.Urgent
	}
	at.Next = 1
	require.False(t, arrive(0, true, false))
	for sn := range container.Serial(5) {
		require.Equal(t, sn < 3, arrive(2+sn, false, true), "%d", sn)
	}
	at.Next = 7
	p.Gap = true // as of the begin of the packet
	arrive(1, true, false)
	require.True(t, p.Filled)
	require.Equal(t, Ack{SN: 1, TS: 8}, p.Filler)
	require.False(t, p.Gap)
	p.Announce(1000)
	require.False(t, p.Filled)
	require.True(t, p.SampledRecently(1099, 100))
	require.False(t, p.SampledRecently(1100, 100))
}

// What arrived behind a gap is acknowledged again, the newest first, each with the ts
// given, and at most so many; numbers wrap around.
func TestAgain(t *testing.T) {
	next := container.Serial(0xfffffff0)
	held := map[container.Serial]bool{next + 1: true, next + 3: true, 5: true, 6: true, next + 64: true}
	got := RepeatedAcks([]Ack{{SN: 1, TS: 2}}, next, 64, 9, func(sn container.Serial) bool { return held[sn] })
	require.Equal(t, []Ack{{SN: 1, TS: 2}, {SN: 6, TS: 9}, {SN: 5, TS: 9}, {SN: next + 3, TS: 9}, {SN: next + 1, TS: 9}}, got)
	got = RepeatedAcks(nil, next, 64, 9, func(container.Serial) bool { return true })
	require.Len(t, got, atClose)
	require.Equal(t, next+63, got[0].SN)
	require.Empty(t, RepeatedAcks(nil, next, 0, 9, func(container.Serial) bool { return true }))
}

// For a call that was woken an ACK waits twice as long each time, 25 ms and half of a
// round trip at most. One that is urgent does not.
func TestAwaitCall(t *testing.T) {
	begin := container.Serial(1<<32 - 10)
	arrived := func() (p DelayedAck) {
		p.Received(Arrival{Bytes: 1, Fresh: true, Next: true, Alone: true}, path(begin, 40))
		require.Equal(t, begin+10, p.Due)
		return p
	}
	p := arrived()
	p.AwaitCall(begin+9, 40)
	require.Equal(t, begin+10, p.Due, "it is not due yet")
	for _, due := range []container.Serial{20, 40, 45, 45} {
		p.AwaitCall(p.Due, 40)
		require.Equal(t, begin+due, p.Due)
	}
	p = arrived()
	p.AwaitCall(begin+30, 40)
	require.Equal(t, begin+45, p.Due)
	p = arrived()
	p.Urgent = true
	p.AwaitCall(begin+10, 40)
	require.Equal(t, begin+10, p.Due)
}

// The constants of the package are the figures that RULES.md says.
func TestAckFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Delayed ACK", "25 ms", MaxAckDelay * time.Millisecond},
		{"| Delayed ACK", "srtt/4", delayShare},
		{"| Delayed ACK", "2 ms", MinAckDelay * time.Millisecond},
		{"| Delayed ACK", "4 segments", manySegments},
		{"| Delayed ACK", "256 bytes", manyBytes},
		{"| Delayed ACK", "5 ms", soonDelay * time.Millisecond},
		{"| Delayed ACK", "srtt/16", SoonShare},
		{"| ACK at once", "4 full segments", FullSegments},
		{"| ACKs that are due", "25 ms", MaxAckDelay * time.Millisecond},
		{"| ACKs that are due", "100 ms", MaxHold * time.Millisecond},
		{"| ACK at once", "3 packets", gapAcks},
		{"ACK repetition", "400 ACKs", repeatLength},
		{"ACK repetition", "4000 at most", repeatMost},
		{"ACK repetition", "10 ms", RepeatDelay * time.Millisecond},
	})
}
