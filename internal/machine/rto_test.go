package machine

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A path that delivers in bunches gives many samples at once, of which the last are short.
// The time-out is longer than the time to the next bunch.
func TestWeighedRTT(t *testing.T) {
	for _, every := range []int32{50, 102, 205} {
		const samples = 40
		var e, reference rttEstimator
		now := Seq(1<<32 - 1000) // the clock comes around
		for range 30 {
			now += Seq(every)
			for i := range int32(samples) {
				rtt := 20 + every - every*i/samples
				e.sampleWeighed(rtt, now-Seq(rtt), now, samples, 10)
				reference.sample(rtt, 10)
			}
			require.GreaterOrEqual(t, e.rto, uint32(15+every), "bunches every %d ms", every)
		}
		require.Less(t, reference.rto, uint32(15+every), "the reference's is not")
	}

	// A path that has become longer is known within a round trip.
	var e rttEstimator
	for i := range Seq(100) {
		e.sampleWeighed(20, 10*i, 10*i+20, 2, 10)
	}
	require.InDelta(t, 30, e.rto, 2)
	for i := range Seq(3) {
		e.sampleWeighed(600, 1000+i, 1600+i, 2, 10)
	}
	require.Greater(t, e.rto, uint32(600))

	for range 100 {
		e.sampleWeighed(1<<31-1, 0, 5000, 2, 10)
		require.LessOrEqual(t, e.rto, uint32(MaxRTO))
		require.Greater(t, e.rto, uint32(600), "what the peer claims makes it no shorter")
	}

	// Few samples are messages, whose time-out is shorter.
	var few, many rttEstimator
	for i := range Seq(200) {
		rtt := int32(60 + i%40)
		few.sampleWeighed(rtt, 20*i, 20*i+Seq(rtt), thinFlight, 10)
		many.sampleWeighed(rtt, 20*i, 20*i+Seq(rtt), thinFlight+1, 10)
	}
	require.Equal(t, few.srtt, many.srtt)
	require.Less(t, few.rto, many.rto)
}

// The round-trip time of the opening is that of the state machine until data shows one.
func TestSeedRTT(t *testing.T) {
	k := New(1, func([]byte) {})
	k.SeedRTT(600)
	require.Equal(t, uint32(rtoInitial), k.snd.rtt.rto, "the reference has no such sample")
	k.SetExtensions(Extensions{StrictRTT: true})
	k.SeedRTT(600)
	require.EqualValues(t, 600, k.snd.rtt.srtt)
	require.Greater(t, k.snd.rtt.rto, uint32(600))
	k.SeedRTT(20)
	require.EqualValues(t, 600, k.snd.rtt.srtt, "it is not the first")
}
