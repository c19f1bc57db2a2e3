package congestion

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// interval shows b a mean rate of 140 000 bytes a second for 100 ms, of which a share was
// lost, on a path of 1 ms.
func interval(b *bbrControl, s *State, share float64) {
	from := s.Micros
	s.Micros += 100_000
	s.Delivered += 10 * 1400
	lost := int(10 * 1400 * share / (1 - share))
	b.OnPacketSent(s, Segment{Size: lost, SentMicros: s.Micros, LostMicros: from + 1})
	b.now, b.newRound = s.Micros, true
	b.updateCeiling(s, 1000)
}

// A ceiling is set at the second interval of severe losses, or the first in Startup. It
// stays if the losses end when less is sent, and is given up if they go on.
func TestCeiling(t *testing.T) {
	for _, test := range []struct {
		state  bbrState
		shares []float64
		rate   []bool // whether there is a ceiling then
	}{
		{bbrStartup, []float64{0.8, 0, 0}, []bool{true, true, true}},
		{bbrStartup, []float64{0.3, 0.3}, []bool{false, false}},
		{bbrStartup, []float64{0.45, 0.45}, []bool{false, false}},
		{bbrCruise, []float64{0.8, 0, 0.8, 0.8}, []bool{false, false, false, true}},
		{bbrCruise, []float64{0.8, 0.8, 0.7, 0.7, 0.7, 0.8, 0.8}, []bool{false, true, true, true, false, false, false}},
		{bbrCruise, []float64{0.2, 0.2, 0.36, 0.36}, []bool{false, false, false, false}},
	} {
		b := NewBBR().(*bbrControl)
		s := &State{MSS: 1376, Micros: 1_000_000}
		b.Init(s)
		b.minRTT, b.bw[1], b.rate, b.full = 1000, 1e6, 1e6, test.state != bbrStartup
		b.enter(test.state, 1)
		b.countLost(s, s.Micros, 0)
		for i, share := range test.shares {
			interval(b, s, share)
			require.Equal(t, test.rate[i], b.limited, "%v, interval %d", test.shares, i)
			if b.limited {
				b.ceiling.begin(s, b.state)
				require.InDelta(t, 140_000, b.bandwidth(), 1)
				require.Negative(t, b.Burst())
			}
		}
	}

	// A path with much in flight has its model.
	b := NewBBR().(*bbrControl)
	b.minRTT, b.bw[1] = 40_000, 1e6
	b.countLost(&State{}, 1, 1400)
	require.Nil(t, b.ceiling)
}

// More arrives when more is sent: the ceiling rises, and ends on a path with more in
// flight. Losses at the ceiling lower it once, and not again if that was no help.
func TestCeilingFollows(t *testing.T) {
	b := NewBBR().(*bbrControl)
	b.minRTT, b.full, b.lossFloorKnown, b.limited = 1000, true, true, true
	b.ceiling = &rateCeiling{rate: 100_000, share: 0.8, age: bbrCeilingTries + 1}
	b.enter(bbrUp, bbrUpPace)
	b.followCeiling(125_000, 0)
	require.InDelta(t, 125_000, b.ceiling.rate, 1)
	b.followCeiling(126_000, 0.2)
	require.Equal(t, bbrDown, b.state)
	b.lowerCeiling(0.2)
	require.InDelta(t, 100_000, b.bandwidth(), 1)
	b.lowerCeiling(0.2)
	require.InDelta(t, 125_000, b.bandwidth(), 1)
	require.InDelta(t, 0.22, b.lossLimit(), 1e-9)
	b.enter(bbrUp, bbrUpPace)
	b.followCeiling(30e6, 0)
	require.False(t, b.limited)
	require.Equal(t, bbrStartup, b.state)
}
