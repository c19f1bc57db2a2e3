package incast

import (
	"cmp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// pathOfOne is a sender whose packets wait in the buffer for a reader.
type pathOfOne struct {
	rate int // bytes a second that the reader takes
	bdp  int // bytes on the way when none wait
	cwnd int // what the sender lets itself have on the way
	late int // bytes that arrive while the reader is late, 10 times a second
}

// run looks at the buffer for some seconds. It returns the mean of what waits in the last
// one, and the least of the window then.
func (p *pathOfOne) run(s *standing, seconds int) (waits, window int) {
	const interval = 250 * time.Microsecond
	sum, n := 0, 0
	for now := time.Duration(0); now < time.Duration(seconds)*time.Second; now += interval {
		used := max(0, p.cwnd-p.bdp)
		if s.most > 0 {
			used = max(0, min(p.cwnd, s.most)-p.bdp)
		}
		if now%(100*time.Millisecond) == 0 {
			used += p.late
		}
		s.look(Buffer{Limit: 8 << 20, Used: used - used/4}, used/4, p.rate/2, now)
		if now >= time.Duration(seconds-1)*time.Second {
			if most := cmp.Or(s.most, standingMost*8<<20); n == 0 || most < window {
				window = most
			}
			sum, n = sum+used, n+1
		}
	}
	return sum / n, window
}

// The window of a sender that sends most of all keeps the standing queue short, and is
// never less than the path needs.
func TestStandingQueue(t *testing.T) {
	for name, test := range map[string]struct {
		pathOfOne
		most int // bytes that may wait
	}{
		"a short path":       {pathOfOne{rate: 1e9, bdp: 50_000, cwnd: 5_000_000}, 2*170_000 - 50_000},
		"a slow reader":      {pathOfOne{rate: 50e6, bdp: 50_000, cwnd: 5_000_000}, 2*standingLeast - 50_000},
		"a path of 20 ms":    {pathOfOne{rate: 1e9, bdp: 20_000_000, cwnd: 25_000_000}, 170_000},
		"a path of 40 ms":    {pathOfOne{rate: 36e6, bdp: 1_500_000, cwnd: 4_000_000}, standingLeast},
		"a path not full":    {pathOfOne{rate: 1e9, bdp: 20_000_000, cwnd: 15_000_000}, 0},
		"a late reader":      {pathOfOne{rate: 1e9, bdp: 20_000_000, cwnd: 15_000_000, late: 6 << 20}, 170_000},
		"a window too small": {pathOfOne{rate: 1e9, bdp: 1_000_000, cwnd: 1_500_000}, 170_000},
	} {
		t.Run(name, func(t *testing.T) {
			var s standing
			waits, window := test.run(&s, 5)
			t.Logf("%d bytes wait, the window is %d or more", waits, window)
			require.LessOrEqual(t, waits, test.most+test.most/8)
			require.GreaterOrEqual(t, window, min(test.bdp, test.cwnd))
			if test.cwnd > test.bdp {
				require.GreaterOrEqual(t, waits, test.most/2)
			}
		})
	}
}

// A sender that is limited gets all again when nothing waits any more. Datagrams that
// were dropped halve what it may have.
func TestStandingQueueGoes(t *testing.T) {
	var s standing
	short := pathOfOne{rate: 1e9, bdp: 50_000, cwnd: 5_000_000}
	_, window := short.run(&s, 2)
	require.Less(t, window, 400_000)
	s.stepAt = 0
	long := pathOfOne{rate: 1e9, bdp: 20_000_000, cwnd: 15_000_000}
	_, window = long.run(&s, 2)
	require.Greater(t, window, long.cwnd)
	require.Zero(t, s.most, "no limit")
	const most = standingMost * 8 << 20
	for _, want := range []int{most, most / 2} {
		s.look(Buffer{Limit: 8 << 20, Drops: s.drops + 1}, 0, long.rate/2, s.stepAt)
		require.Equal(t, want, s.most)
	}
	s.look(Buffer{Limit: 8 << 20, Drops: s.drops}, 0, long.rate/2, s.stepAt)
	require.Equal(t, most/8*5, s.most)
}

// One that sends most of all is limited only if others send too, and if the system tells
// what waits.
func TestStandingQueueOfOne(t *testing.T) {
	var i Budget
	big := new(Sender)
	i.advance(0)
	i.Offered(big, 10<<20, true)
	look := func(b Buffer) uint32 {
		for now := time.Duration(0); now < 3*time.Second; now += 250 * time.Microsecond {
			i.Look(b, now)
		}
		i.standing.stepAt = 0 // the next call begins again
		return i.Window(1472, false, true)
	}
	full := Buffer{Limit: 8 << 20, Used: 6 << 20}
	require.Zero(t, look(full), "it is alone")
	require.True(t, i.Single())
	i.Offered(new(Sender), 1000, true)
	require.False(t, i.Single())
	require.True(t, i.Alone())
	require.EqualValues(t, 2*standingLeast/2304, look(full))
	require.EqualValues(t, Least, i.Window(1472, true, true), "of the others")
	require.Zero(t, look(Buffer{Limit: 8 << 20, Used: -1}))
	require.Zero(t, look(Buffer{}))
}
