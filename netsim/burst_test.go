package netsim

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

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
	require.InDelta(t, 0.05, BurstLoss(0.05, 4).Mean(), 1e-12)
	both := GilbertElliott{ToBad: 0.01, ToGood: 0.04, LossGood: 0.02, LossBad: 0.6}
	require.InDelta(t, 0.8*0.02+0.2*0.6, both.Mean(), 1e-12)
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
