package pmtud

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSizeWatch(t *testing.T) {
	w := BlackHole{}
	w.DeclaredLost(1400, 1400, 1)
	require.Zero(t, w.Lost, "nothing is watched")
	w.Watch(1200, 0, 0)
	w.DeclaredLost(1200, 1400, 1)
	w.DeclaredLost(1401, 1400, 1)
	require.Zero(t, w.Lost, "small ones, and those from before the MTU has shrunk")
	w.DeclaredLost(1350, 1400, 2)
	w.DeclaredLost(1300, 1400, 3)
	w.DeclaredLost(1400, 1400, 4)
	require.Equal(t, BlackHole{watchAbove: 1200, Lost: 3, smallestLost: 1300, since: 2, bySize: bySize{large: 3}}, w)
	w.Arrived(1299)
	require.EqualValues(t, 3, w.Lost, "that says nothing of larger ones")
	w.Arrived(1300)
	require.Zero(t, w.Lost)
}

// Losses that were noticed long ago are suspect, though half of the clock's circle has
// passed since.
func TestOldLossesAreSuspect(t *testing.T) {
	const now, rto = 1234, 500
	for rest, suspect := range map[uint32]bool{0: false, rto - 1: false, rto: true, 1 << 31: true, 1<<32 - 1: true} {
		w := BlackHole{Lost: WatchedLosses, since: now - rest}
		require.Equal(t, suspect, w.Suspected(now, rto), "%d ms", rest)
		w.Lost--
		require.False(t, w.Suspected(now, rto), "too few")
	}
}

// While large packets are suspect packets are as large as what has arrived, within what
// nearly every path takes; retransmissions are as large as anything that has arrived.
func TestSizesWhileSuspect(t *testing.T) {
	var w BlackHole
	require.EqualValues(t, 1400, w.MostAgain(1400, 1400), "nothing is watched")
	w.Watch(548, 400, 1200)
	require.EqualValues(t, 548, w.Most(1400))
	require.EqualValues(t, 548, w.MostAgain(1400, 1400))
	require.EqualValues(t, 400, w.Most(548), "the MTU is no larger than what was watched")
	w.Arrived(1000)
	require.EqualValues(t, 1000, w.Most(1400))
	w.Arrived(1300)
	require.EqualValues(t, 1200, w.Most(1400))
	require.EqualValues(t, 1300, w.MostAgain(1400, 1400))
	require.EqualValues(t, 1250, w.MostAgain(1250, 1400), "never larger than what is asked for")
	w.Shrunk(900)
	require.EqualValues(t, 900, w.MostAgain(1400, 1400))
	w.Restart()
	require.EqualValues(t, 548, w.MostAgain(1400, 1400))
}
