package recovery

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The rate is what was delivered since a segment left, over the longer of the time in
// which it was sent and that in which it was acknowledged.
func TestRate(t *testing.T) {
	var r RateSampler
	records := make([]Transmission, 20)
	for i := range records { // 1000 bytes each 10 ms
		records[i] = r.Sent(1000, int64(10_000*i), int64(1000*i))
	}
	for i := range 10 { // acknowledged in a bunch
		r.Begin()
		r.Acked(&records[i], 1000, 300_000, Once)
		r.Finish(1)
	}
	require.EqualValues(t, 10_000, r.Delivered)
	for i := 10; i < 20; i++ {
		r.Begin()
		r.Acked(&records[i], 1000, 300_000+int64(10_000*(i-9)), Once)
		r.Finish(1)
	}
	require.EqualValues(t, 20_000, r.Sample.Delivered)
	require.EqualValues(t, 50_000, r.Sample.Rate(), "20 kB in 400 ms, as they were acknowledged")
	require.EqualValues(t, 210_000, r.Sample.RTT)
	require.EqualValues(t, 210_000, r.MinRTT)
	require.EqualValues(t, 20_000, r.Sample.InFlight)
}

// Only a segment that was sent once, without copies, shows a round trip. One that
// was sent again shows a rate if the last transmission is known to have arrived.
func TestAckedAgain(t *testing.T) {
	for how, want := range map[Transmissions][2]int64{Once: {50, 50}, Repeated: {0, 50}, Last: {0, 0}, Ambiguous: {0, 0}} {
		var r RateSampler
		tx := r.Sent(1000, 100, 0)
		r.Begin()
		r.Acked(&tx, 1000, 150, how)
		require.Equal(t, want[0], r.Sample.RTT, "%d", how)
		require.Equal(t, want[1], r.MinRTT, "%d", how)
		require.Equal(t, how != Ambiguous, r.Sampled, "%d", how)
	}
}

// A sender without data is limited by itself until what was in flight then has
// arrived.
func TestAppLimited(t *testing.T) {
	var r RateSampler
	first := r.Sent(1000, 0, 0)
	r.Limited(1000)
	require.True(t, r.AppLimited())
	second := r.Sent(1000, 10, 1000)
	for i, tx := range []*Transmission{&first, &second} {
		r.Begin()
		r.Acked(tx, 1000, 100, Once)
		r.Finish(1)
		require.Equal(t, i == 1, r.Sample.AppLimited)
		require.Equal(t, i == 0, r.AppLimited())
	}
	r.DeclaredLost(&second, 1000)
	require.EqualValues(t, 1000, r.Lost)
	require.EqualValues(t, 10, r.LostSent)
}

// What acknowledges nothing new makes no sample.
func TestNoSample(t *testing.T) {
	var r RateSampler
	tx := r.Sent(1000, 100, 0)
	r.Begin()
	r.Acked(&tx, 1000, 150, Once)
	r.Finish(1)
	require.Positive(t, r.Sample.Interval)
	r.Begin()
	r.Finish(1)
	require.Zero(t, r.Sample)
}

// An acknowledgement that took half as long again as the shortest shows a queue.
func TestQueued(t *testing.T) {
	var r RateSampler
	for i, test := range []struct {
		rtt    int64
		queued bool
	}{{100, false}, {149, false}, {150, true}, {90, false}, {135, true}, {134, false}} {
		tx := r.Sent(1000, int64(i)*1000, 0)
		r.Begin()
		r.Acked(&tx, 1000, int64(i)*1000+test.rtt, Once)
		require.Equal(t, test.queued, r.Queued(), "%d", test.rtt)
	}
}
