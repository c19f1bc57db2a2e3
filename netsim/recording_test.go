package netsim

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Packets leave in the places of a recording, one each, whatever their size, and begin
// anew at its end.
func TestRecording(t *testing.T) {
	r, err := ReadRecording(strings.NewReader("2 0\n1 4\n"), 20*time.Millisecond)
	require.NoError(t, err)
	require.Equal(t, []uint16{2, 0, 1, 4}, r.Counts)
	l := NewLink(LinkConfig{Recording: r, Delay: time.Millisecond}, 1)
	var got []time.Duration
	for range 9 {
		for _, d := range l.Send(0, make([]byte, 700)) {
			got = append(got, d.At)
		}
	}
	want := []time.Duration{0, 10, 40, 60, 65, 70, 75, 80, 90}
	for i := range want {
		want[i] = (want[i] + 1) * time.Millisecond
	}
	require.Equal(t, want, got)
	require.EqualValues(t, 7, r.Packets(0, 80*time.Millisecond))
	require.EqualValues(t, 14, r.Packets(0, 160*time.Millisecond))
	require.InDelta(t, 0.5+2.4, r.Packets(50*time.Millisecond, 72*time.Millisecond), 1e-9)

	// One that comes late takes the next place, and those that are missed are lost.
	l = NewLink(LinkConfig{Recording: r}, 1)
	require.Equal(t, 40*time.Millisecond, l.Send(15*time.Millisecond, []byte("x"))[0].At)
	require.Equal(t, 80*time.Millisecond, l.Send(77*time.Millisecond, []byte("x"))[0].At)
}

// What waits for a place needs room in the queue.
func TestRecordingQueue(t *testing.T) {
	r := &Recording{Slot: time.Second, Counts: []uint16{1}}
	l := NewLink(LinkConfig{Recording: r, QueuePackets: 2}, 1)
	for range 5 {
		l.Send(0, make([]byte, 100))
	}
	require.EqualValues(t, 3, l.Stats().Delivered.Packets)
	require.EqualValues(t, 2, l.Stats().Overflow.Packets)
}

func TestRecordingIsValid(t *testing.T) {
	for _, text := range []string{"", "0 0", "1 -1", "1 70000", "1 x"} {
		_, err := ReadRecording(strings.NewReader(text), time.Millisecond)
		require.Error(t, err, "%q", text)
	}
	_, err := ReadRecording(strings.NewReader("1"), 0)
	require.Error(t, err)
	require.Error(t, LinkConfig{Recording: &Recording{Slot: time.Second}}.Validate())
}

// With Bunch packets arrive at multiples of a time, in order.
func TestBunch(t *testing.T) {
	l := NewLink(LinkConfig{Delay: 3 * time.Millisecond, Bunch: 10 * time.Millisecond}, 1)
	for at, want := range map[time.Duration]time.Duration{0: 10, 6: 10, 7: 10, 8: 20, 17: 20} {
		got := NewLink(l.Config(), 1).Send(at*time.Millisecond, []byte("x"))
		require.Equal(t, want*time.Millisecond, got[0].At, at)
	}
	require.Error(t, LinkConfig{Bunch: -1}.Validate())
}
