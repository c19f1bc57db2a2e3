package netpath

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSizeWatch(t *testing.T) {
	w := BlackHole{}
	w.DeclaredLost(SizedLosses{Size: 1400, MTU: 1400, Now: 1})
	require.Zero(t, w.large.n, "nothing is watched")
	w.Watch(1200, 0, 0)
	w.DeclaredLost(SizedLosses{Size: 1200, MTU: 1400, Now: 1})
	w.DeclaredLost(SizedLosses{Size: 1401, MTU: 1400, Now: 1})
	require.Zero(t, w.large.n, "small ones, and those from before the MTU has shrunk")
	w.DeclaredLost(SizedLosses{Size: 1350, MTU: 1400, Now: 2})
	w.DeclaredLost(SizedLosses{Size: 1300, MTU: 1400, Now: 3})
	w.DeclaredLost(SizedLosses{Size: 1400, MTU: 1400, Now: 4})
	require.Equal(t, BlackHole{watchAbove: 1200, large: losses{3, 1300, 2}, bySize: bySize{large: 3}}, w)
	w.Arrived(1299)
	require.EqualValues(t, 3, w.large.n, "that says nothing of larger ones")
	w.Arrived(1300)
	require.Zero(t, w.large.n)
}

// Losses that were noticed long ago are suspect, though half of the clock's circle has
// passed since.
func TestOldLossesAreSuspect(t *testing.T) {
	const now, rto = 1234, 500
	for rest, suspect := range map[uint32]bool{0: false, rto - 1: false, rto: true, 1 << 31: true, 1<<32 - 1: true} {
		w := BlackHole{large: losses{n: WatchedLosses, since: now - rest}}
		require.Equal(t, suspect, w.Suspected(now, rto), "%d ms", rest)
		w.large.n--
		require.False(t, w.Suspected(now, rto), "too few")
	}
}

// While large packets are suspect packets are as large as what has arrived, within what
// nearly every path takes; retransmissions are as large as anything that has arrived.
func TestSizesWhileSuspect(t *testing.T) {
	var w BlackHole
	require.EqualValues(t, 1400, w.MostAgain(1400, 1400), "nothing is watched")
	w.Watch(548, 400, 1200)
	const now, rto = 500, 200
	most := func(mtu int32) int32 { return w.Most(now, rto, mtu) }
	require.EqualValues(t, 1400, most(1400), "nothing was lost")
	w.large = losses{WatchedLosses, 1400, 0}
	require.EqualValues(t, 548, most(1400))
	require.EqualValues(t, 548, w.MostAgain(1400, 1400))
	require.EqualValues(t, 400, most(548), "the MTU is no larger than what was watched")
	w.Arrived(1000)
	require.EqualValues(t, 1000, most(1400))
	w.Arrived(1300)
	require.EqualValues(t, 1200, most(1400))
	require.EqualValues(t, 1300, w.MostAgain(1400, 1400))
	require.EqualValues(t, 1250, w.MostAgain(1250, 1400), "never larger than what is asked for")
	w.Shrunk(900)
	require.EqualValues(t, 900, w.MostAgain(1400, 1400))
	w.Restart()
	require.EqualValues(t, 548, w.MostAgain(1400, 1400))
}

// Losses of packets that nearly every path takes are a suspicion of their own: what is
// larger, and arrives, ends it, and no loss of that.
func TestSmallLossesAreWatched(t *testing.T) {
	const rto = 200
	var w BlackHole
	w.Watch(1200, 548, 1200)
	for now := range uint32(3) {
		w.DeclaredLost(SizedLosses{Size: 548, MTU: 1400, Now: now})
		w.DeclaredLost(SizedLosses{Size: 1000, MTU: 1400, Now: now * rto})
	}
	w.DeclaredLost(SizedLosses{Size: 1400, MTU: 1400, Now: 0})
	require.False(t, w.Suspected(rto-1, rto))
	require.True(t, w.Suspected(rto, rto))
	require.EqualValues(t, 1400, w.Most(rto, rto, 1400), "a probe decides")
	require.True(t, w.Watched(rto, rto, 1400, true).Small)
	w.Arrived(999)
	require.True(t, w.Suspected(rto, rto))
	w.Arrived(1000)
	require.False(t, w.Suspected(rto, rto))
	require.Equal(t, 1, w.Watched(rto, rto, 1400, true).Lost)
	w.Forget()
	require.False(t, w.Losing())
}

// A trial shows whether packets are lost by their size. It comes to an end.
func TestLossBySize(t *testing.T) {
	begin := func() *BlackHole {
		w := new(BlackHole)
		w.Watch(1200, 548, 1200)
		for range 6 {
			require.False(t, w.Divides() && w.SendsSmall(1, 1))
			w.Full += 40
			w.DeclaredLost(SizedLosses{Size: 1400, MTU: 1400, Now: 1})
			w.Arrived(1400)
		}
		require.True(t, w.Divides())
		small := 0
		for sn := range uint32(1000) {
			if w.SendsSmall(sn, 1) {
				small++
			}
		}
		require.InDelta(t, 500, small, 50)
		return w
	}
	now := uint32(1)
	lose := func(w *BlackHole, large, small int) {
		for range small {
			w.DeclaredLost(SizedLosses{Size: 1190, MTU: 1400, Now: 1})
			w.DeclaredLost(SizedLosses{Size: 600, MTU: 1400, Now: 1}) // no half of the trial
		}
		for range large {
			w.Arrived(1400)
			w.DeclaredLost(SizedLosses{Size: 1400, MTU: 1400, Now: now})
		}
		w.Forget()
	}
	for _, test := range []struct {
		large, small  int
		found, trying bool
	}{{11, 0, false, true}, {12, 0, true, false}, {19, 2, false, true}, {20, 2, true, false}, {24, 8, false, false}} {
		w := begin()
		lose(w, test.large, test.small)
		require.Equal(t, test.found, w.Watched(1, 1, 1400, true).BySize, "%+v", test)
		require.Equal(t, test.trying, w.Divides(), "%+v", test)
	}
	w := begin()
	lose(w, 5, 0)
	w.Full += trialFull
	require.True(t, w.Divides() && w.SendsSmall(1, 1) != w.SendsSmall(2, 1))
	w.Full++
	require.False(t, w.SendsSmall(1, 1) || w.SendsSmall(2, 1))
	require.False(t, w.Divides())
	lose(w, 100, 0)
	require.False(t, w.Divides(), "too soon")
	for _, late := range []bool{false, true} {
		now += 1999
		if late {
			now = 1 + 2000
		}
		w.Full += 300
		lose(w, 1, 0)
		w.Full += 40
		lose(w, 5, 0)
		require.Equal(t, late, w.Divides())
	}
	w.Shrunk(1200)
	require.False(t, w.Divides())

	w = new(BlackHole)
	w.Watch(1200, 548, 1200)
	for range 100 {
		w.Full += 100
		w.DeclaredLost(SizedLosses{Size: 1400, MTU: 1400, Now: 1})
		w.Arrived(1400)
	}
	require.False(t, w.Divides(), "one of a hundred is lost")
}
