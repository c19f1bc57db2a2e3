package congestion

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// changing is a controller in ProbeBW on a path of 1 MB/s and 10 ms.
func changing() (*bbrControl, *State) {
	b := NewBBR().(*bbrControl)
	s := &State{MSS: 1376, Micros: 1_000_000}
	b.Init(s)
	b.minRTT, b.minAt, b.bw[1], b.full, b.lossFloorKnown = 10_000, s.Micros, 1e6, true, true
	b.enter(bbrCruise, 1)
	b.probeAt = 1 << 60
	return b, s
}

// round acknowledges what a round trip of rtt microseconds has delivered, at rate bytes a
// second, with flight bytes left in flight.
func round(b *bbrControl, s *State, rtt int64, rate float64, flight int64) {
	s.Micros += rtt
	delivered := int64(rate * float64(rtt) / 1e6)
	prior := s.Delivered
	s.Delivered += delivered
	s.FlightBytes = flight
	s.Sample = Sample{Acked: delivered, RTT: rtt, Delivered: delivered, Interval: rtt, PriorDelivered: prior}
	b.OnAck(s)
}

// If round trips grow, ProbeRTT finds out whether a queue is why.
func TestLongerPath(t *testing.T) {
	for name, tc := range map[string]struct {
		empty   int64 // the round-trip time while little is in flight
		state   bbrState
		longest int64
	}{
		"the path is longer": {100_000, bbrStartup, 100_000},
		"a queue":            {10_000, bbrCruise, 10_000},
	} {
		b, s := changing()
		rounds := 0
		for ; b.state != bbrProbeRTT; rounds++ {
			require.Less(t, rounds, 10, name)
			round(b, s, 100_000, 1e5, 20_000)
		}
		require.Greater(t, rounds, bbrLongerRounds, name)
		require.Less(t, b.drained, 10_000., "%s: half of what the old path takes", name)
		for n := 0; b.state == bbrProbeRTT; n++ {
			require.Less(t, n, 30, name)
			round(b, s, tc.empty, 5e4, 2000)
		}
		require.Equal(t, tc.state, b.state, name)
		require.Equal(t, tc.longest, b.minRTT, name)
		require.InDelta(t, 1e5, b.bandwidth(), 1, "%s: as before the test", name)
	}

	// A round trip that is long now and then, or held back, is none.
	b, s := changing()
	for n := range 50 {
		round(b, s, []int64{100_000, 11_000}[n%2], 1e6, 20_000)
		require.NotEqual(t, bbrProbeRTT, b.state)
	}
}

// Most of a round trip is lost, and less than half of the rate arrives: it is that of the
// path. Less loss, or more of the rate, is not.
func TestCollapse(t *testing.T) {
	for _, tc := range []struct {
		rate      float64
		lost      int64
		collapses bool
	}{{1e5, 200_000, true}, {1e5, 2000, false}, {8e5, 200_000, false}} {
		b, s := changing()
		for range 3 {
			round(b, s, 10_000, tc.rate, 20_000)
		}
		s.Sample.Delivered, s.Sample.Lost = 20_000, tc.lost
		b.collapse(&s.Sample)
		if tc.collapses {
			require.InDelta(t, tc.rate, b.bandwidth(), 1)
			require.Equal(t, bbrDown, b.state)
		} else {
			require.InDelta(t, 1e6, b.maxRate(), 1)
		}
	}
}

// What is in flight is what arrives lately in a short time.
func TestMostInFlight(t *testing.T) {
	b, s := changing()
	for range 4 {
		round(b, s, 10_000, 2e5, 20_000)
	}
	require.InDelta(t, 2e5*(0.010+0.050), b.mostInFlight()-b.quantum(), 3000)
	require.LessOrEqual(t, b.cwnd, b.mostInFlight())
}

// Round trips that differ much show a link that is slow now and then, not a longer path.
func TestUnsteadyPath(t *testing.T) {
	b, s := changing()
	for n := int64(0); b.state != bbrProbeRTT; n++ {
		require.Less(t, n, int64(10))
		round(b, s, 50_000<<n, 1e5, 20_000)
	}
	for n := 0; b.state == bbrProbeRTT; n++ {
		require.Less(t, n, 30)
		round(b, s, 200_000, 5e4, 2000)
	}
	require.Equal(t, bbrCruise, b.state)
	require.EqualValues(t, 10_000, b.minRTT)
}

// A round that does not end has no samples of its rate. After a second what has arrived in
// it is the rate.
func TestLateRound(t *testing.T) {
	b, s := changing()
	for range 3 {
		round(b, s, 10_000, 1e6, 20_000)
	}
	for took := int64(0); took < 3_000_000; took += 100_000 {
		s.Micros += 100_000
		s.Delivered += 1000
		s.Sample = Sample{Acked: 1000, PriorDelivered: b.roundEnd - 1}
		b.OnAck(s)
		if took < bbrLateRound-100_000 {
			require.InDelta(t, 1e6, b.change.recent(), 1)
		} else if took > bbrLateRound {
			require.InDelta(t, 10_000, b.change.recent(), 1000)
			require.Less(t, b.cwnd, 5*b.mss)
		}
	}
	round(b, s, 10_000, 2e5, 20_000)
	require.Zero(t, b.change.late)
}

// A path that holds packets back for 205 ms has the bunches in flight, also if the bandwidth
// that is known of it is a little too low.
func TestBunchesStayInFlight(t *testing.T) {
	b, s := changing()
	for range 40 {
		b.bw = [2]float64{0.95e6, 0.95e6}
		for n := range int64(10) {
			if s.Micros += 1; n == 0 {
				s.Micros += 205_000 - 10
			}
			s.Delivered += 20_500
			s.Sample = Sample{Acked: 20_500, PriorDelivered: s.Delivered - 205_000, RTT: 205_000}
			b.OnAck(s)
		}
	}
	require.InDelta(t, 205_000, b.aggregated(), 30_000)
}

// What the peer acknowledges late, four times in a round trip, is no queue that may stay: a
// drained path has no more in flight than it takes.
func TestLateAcksAreNoQueue(t *testing.T) {
	for _, excess := range []float64{0, 0.25, 1} {
		b, s := changing()
		b.extraAcked.most[0] = excess * b.bdp()
		b.enterDown()
		b.rounds = 5
		for flight := 2 * b.bdp(); b.state == bbrDown; flight -= b.mss {
			require.Positive(t, flight)
			s.FlightBytes = int64(flight)
			b.step(s)
		}
		require.InDelta(t, b.bdp()*(1+max(excess-0.25, 0)), s.FlightBytes, 2*b.mss, "%v", excess)
	}
}

// A link that stands still looks like a long path. The window is no larger than before it
// was tested.
func TestStalledLinkKeepsTheWindow(t *testing.T) {
	b, s := changing()
	for b.state != bbrProbeRTT {
		round(b, s, 900_000, 1e5, 20_000)
	}
	window := b.change.window
	for n := 0; b.state == bbrProbeRTT; n++ {
		require.Less(t, n, 30)
		round(b, s, 900_000, 500, 0)
	}
	require.Equal(t, bbrStartup, b.state)
	require.Less(t, b.cwnd, window+3000)
}
