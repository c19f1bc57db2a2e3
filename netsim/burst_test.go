package netsim

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// runs sends packets over a link and returns how many were lost and in how many
// bursts.
func runs(l *Link, packets int) (lost, bursts int) {
	inBurst := false
	for range packets {
		if len(l.Send(0, nil)) > 0 {
			inBurst = false
			continue
		}
		lost++
		if !inBurst {
			bursts++
		}
		inBurst = true
	}
	return lost, bursts
}

func TestBurstLoss(t *testing.T) {
	const packets = 100_000
	for _, test := range []struct{ mean, length float64 }{
		{0.01, 1}, {0.05, 4}, {0.05, 20}, {0.3, 8}, {0.5, 2},
	} {
		for seed := range uint64(3) {
			cfg := LinkConfig{Burst: BurstLoss(test.mean, test.length)}
			require.NoError(t, cfg.Validate())
			require.InDelta(t, test.mean, cfg.Burst.Mean(), 1e-12)
			lost, bursts := runs(NewLink(cfg, seed), packets)
			// The number of bursts is nearly Poisson's, at most; their lengths
			// are geometric.
			n := float64(packets) * test.mean / test.length
			name := "mean %v, length %v, seed %d"
			require.InDelta(t, n, float64(bursts), 5*math.Sqrt(n), name, test.mean, test.length, seed)
			require.InDelta(t, test.length, float64(lost)/float64(bursts), 5*test.length/math.Sqrt(n)+1e-9, name, test.mean, test.length, seed)
			require.InDelta(t, test.mean, float64(lost)/packets, 10*test.length*math.Sqrt(n)/packets, name, test.mean, test.length, seed)
		}
	}
}

func TestGilbertElliottHasLossInBothStates(t *testing.T) {
	const packets = 400_000
	model := GilbertElliott{ToBad: 0.01, ToGood: 0.04, LossGood: 0.02, LossBad: 0.6}
	require.InDelta(t, 0.8*0.02+0.2*0.6, model.Mean(), 1e-12)
	l := NewLink(LinkConfig{Burst: model}, 1)
	lost := [2]int64{}
	sent := [2]int{}
	for range packets {
		gone := len(l.Send(0, nil)) == 0
		state := 0
		if l.bad {
			state = 1
		}
		sent[state]++
		if gone {
			lost[state]++
		}
	}
	require.InDelta(t, 0.2, float64(sent[1])/packets, 0.01, "share of the bad state")
	requireShare(t, "lost while good", lost[0], sent[0], 0.02)
	requireShare(t, "lost while bad", lost[1], sent[1], 0.6)
}

func TestBurstLossOutOfRange(t *testing.T) {
	for _, bad := range []GilbertElliott{
		BurstLoss(-0.1, 4), BurstLoss(1, 4), BurstLoss(2, 4), BurstLoss(math.NaN(), 4),
		BurstLoss(0.1, 0.5), BurstLoss(0.1, 0), BurstLoss(0, 0.5), BurstLoss(0.1, math.NaN()),
		BurstLoss(0.9, 2), // bursts of 2 cannot make more than 2 of 3
	} {
		require.ErrorContains(t, LinkConfig{Burst: bad}.Validate(), "LinkConfig.Burst", "%+v", bad)
	}
	for burst, want := range map[GilbertElliott]string{
		BurstLoss(0.9, 1):   "netsim: LinkConfig.Burst.ToBad is 9.000000000000002, want 0 to 1: bursts of 1 packets in the mean lose at most the share 0.5, not 0.9",
		BurstLoss(1, 4):     "netsim: LinkConfig.Burst.ToBad is +Inf, want 0 to 1: bursts of 4 packets in the mean lose at most the share 0.8, not 1",
		BurstLoss(-0.5, 1):  "netsim: LinkConfig.Burst.ToBad is -0.3333333333333333, want 0 to 1: the share that bursts lose is 0 to 1, not -0.5",
		BurstLoss(0.1, 0.5): "netsim: LinkConfig.Burst.ToGood is 2, want 0 to 1: bursts have at least 1 packet in the mean, not 0.5",
		{ToBad: 2}:          "netsim: LinkConfig.Burst.ToBad is 2, want 0 to 1",
	} {
		require.EqualError(t, LinkConfig{Burst: burst}.Validate(), want)
	}
	require.EqualError(t, LinkConfig{Loss: 2, Burst: BurstLoss(0.9, 1)}.Validate(), "netsim: LinkConfig.Loss is 2, want 0 to 1")
	require.Equal(t, GilbertElliott{}, BurstLoss(0, 4))
	require.NoError(t, LinkConfig{Burst: BurstLoss(2.0/3, 2)}.Validate())
}

// A link that has left its bad state for good by a change must not be found in
// it when bursts come back.
func TestBurstBeginsGood(t *testing.T) {
	burst := GilbertElliott{ToBad: 1, LossBad: 1}
	l := NewLink(LinkConfig{Burst: burst}, 1)
	require.Empty(t, l.Send(0, nil))
	l.SetConfig(LinkConfig{})
	require.Len(t, l.Send(0, nil), 1)
	l.SetConfig(LinkConfig{Burst: GilbertElliott{LossBad: 1}})
	require.Len(t, l.Send(0, nil), 1)
}

// The bursts of a link are the same whatever else befalls its packets.
func TestBurstLuckIsItsOwn(t *testing.T) {
	burst := BurstLoss(0.2, 5)
	plain := NewLink(LinkConfig{Burst: burst}, 3)
	busy := NewLink(LinkConfig{
		Burst: burst, Loss: 0.3, Rate: 1000, Queue: 1000, Jitter: time.Second, Duplicate: 0.3,
	}, 3)
	for i := range 2000 {
		if len(plain.Send(0, []byte("packet"))) == 0 {
			require.Empty(t, busy.Send(0, []byte("packet")), "packet %d", i)
		} else {
			busy.Send(0, []byte("packet"))
		}
	}
}

func TestJitterShapes(t *testing.T) {
	const packets = 200_000
	const jitter = 40 * time.Millisecond
	for _, test := range []struct {
		shape            JitterShape
		median, p99, max float64 // in units of jitter
	}{
		{JitterUniform, 0.5, 0.99, 1},
		// Irwin and Hall for four: the probability of a sum above 4-x is x^4/24.
		{JitterNormal, 0.5, 1 - math.Pow(0.24, 0.25)/4, 1},
		{JitterPareto, 1.5 * (math.Pow(0.5, -0.25) - 1), 1.5 * (math.Pow(0.01, -0.25) - 1), 20},
	} {
		l := NewLink(LinkConfig{Jitter: jitter, JitterShape: test.shape}, 5)
		var sum time.Duration
		var aboveMedian, aboveP99 int64
		for i := range packets {
			now := time.Duration(i) * time.Minute
			extra := l.Send(now, nil)[0].At - now
			if extra < 0 || float64(extra) > test.max*float64(jitter) {
				t.Fatalf("shape %d: an extra delay of %v", test.shape, extra)
			}
			sum += extra
			if float64(extra) > test.median*float64(jitter) {
				aboveMedian++
			}
			if float64(extra) > test.p99*float64(jitter) {
				aboveP99++
			}
		}
		requireShare(t, "above the median", aboveMedian, packets, 0.5)
		requireShare(t, "above the 99th percentile", aboveP99, packets, 0.01)
		require.InEpsilon(t, float64(jitter)/2, float64(sum)/packets, 0.01, "mean of shape %d", test.shape)
	}
}

func TestJitterCorrelation(t *testing.T) {
	const packets = 100_000
	l := NewLink(LinkConfig{Jitter: time.Second, JitterCorrelation: 0.9}, 5)
	extra := make([]float64, packets)
	same, low := int64(0), int64(0)
	for i := range extra {
		now := time.Duration(i) * time.Minute
		extra[i] = (l.Send(now, nil)[0].At - now).Seconds() - 0.5
		if i > 0 && extra[i] == extra[i-1] {
			same++
		}
		if extra[i] < -0.4 {
			low++
		}
	}
	requireShare(t, "same as before", same, packets-1, 0.9)
	require.InDelta(t, 0.1, float64(low)/packets, 0.02, "the distribution has changed")
	for distance, want := range map[int]float64{1: 0.9, 5: math.Pow(0.9, 5), 50: 0} {
		var sum float64
		for i := distance; i < packets; i++ {
			sum += extra[i] * extra[i-distance]
		}
		require.InDelta(t, want, sum*12/packets, 0.04, "correlation at %d", distance)
	}
}
