package kcp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// searchOn lets p probe a path that takes so many bytes until it is at its end,
// and returns what was probed, and when it was.
func searchOn(t *testing.T, p *pmtuSearch, path int, now time.Duration) (sizes []int, end time.Duration) {
	t.Helper()
	for nonce := uint32(1); p.active(); nonce++ {
		require.Less(t, len(sizes), 100)
		require.True(t, p.due(p.next))
		require.False(t, p.next > 0 && p.due(p.next-1))
		now = max(now, p.next)
		if p.out {
			p.heard = true
			if p.expire(now); !p.active() {
				break
			}
		}
		p.sent(nonce, now, 0)
		sizes = append(sizes, p.probe)
		require.False(t, p.answered(nonce+1, p.probe, now))
		require.False(t, p.answered(nonce, p.probe+1, now))
		if p.probe <= path {
			require.True(t, p.answered(nonce, p.probe, now))
			require.False(t, p.answered(nonce, p.probe, now), "once")
		}
	}
	return sizes, now
}

func TestPMTUSearch(t *testing.T) {
	for _, test := range []struct {
		size, limit, path int
		probed            []int
		end               int
	}{
		{1400, 1472, 1500, []int{1472}, 1472},
		{1400, 1472, 1420, []int{1472, 1472, 1472, 1436, 1436, 1436, 1418}, 1418},
		{1400, 9000, 1472, nil, 1472},
		{1400, 9000, 9000, []int{9000}, 9000},
		{1400, 65507, 1472, nil, 1472},
		{1400, 65507, 30000, nil, 29990},
		{9000, 9000, 9000, nil, 9000},
		{50, 1400, 50, nil, 50},
		{1460, 1472, 1472, []int{1472}, 1472},
		{1460, 1472, 1465, []int{1472, 1472, 1472}, 1460},
	} {
		p := newPMTUSearch(min(basePMTU, test.size), test.size, test.limit, etherIPv4)
		p.begin(0, searchAfter-1)
		require.False(t, p.active(), "too little was sent")
		p.begin(0, searchAfter)
		sizes, _ := searchOn(t, p, test.path, 0)
		if test.probed != nil {
			require.Equal(t, test.probed, sizes)
		}
		require.InDelta(t, test.end, p.size, pmtuStep)
		require.LessOrEqual(t, p.size, test.path)
		if len(sizes) > 0 {
			require.LessOrEqual(t, len(sizes), 45)
			require.Equal(t, test.limit, sizes[0])
		}
	}
}

// A search is repeated after ten minutes, if enough was sent since.
func TestPMTUSearchIsRepeated(t *testing.T) {
	p := newPMTUSearch(basePMTU, 1400, 1472, etherIPv4)
	p.begin(0, 100)
	_, now := searchOn(t, p, 1400, 0)
	p.begin(now+raiseAfter-1, 100000)
	require.False(t, p.active())
	p.begin(now+raiseAfter, 100000+searchAfter-1)
	require.False(t, p.active())
	p.begin(now+raiseAfter, 100000+searchAfter)
	require.True(t, p.active())
	_, now = searchOn(t, p, 1472, now+raiseAfter)
	require.Equal(t, 1472, p.size)
	p.begin(now+2*raiseAfter, 1e6)
	require.False(t, p.active(), "there is no more to be had")
}

// In doubt the size in use is probed. Where it does not pass, what is left is
// searched from the base up.
func TestPMTUSearchInDoubt(t *testing.T) {
	p := newPMTUSearch(basePMTU, 1400, 1472, etherIPv4)
	p.suspect(0)
	sizes, _ := searchOn(t, p, 1400, 0)
	require.Equal(t, []int{1400}, sizes)
	require.Equal(t, 1400, p.size)
	p.begin(0, searchAfter)
	require.True(t, p.active(), "the doubt does not put the search off")
	sizes, _ = searchOn(t, p, 1472, 0)
	require.Equal(t, []int{1472}, sizes)

	p.suspect(0)
	sizes, now := searchOn(t, p, 1272, 0)
	require.Equal(t, []int{1472, 1472, 1472, 1336, 1336, 1336, 1268}, sizes[:7])
	require.Equal(t, 1268, p.size)
	p.begin(now+1, 1e6)
	require.False(t, p.active())
}

// Doubts that probes dispel again and again are raised at growing distances, up
// to a limit, until data of the size arrives.
func TestPMTUSearchTrustGrows(t *testing.T) {
	p := newPMTUSearch(basePMTU, 1400, 1400, etherIPv4)
	confirm := func(now time.Duration) time.Duration {
		p.suspect(now)
		p.sent(1, now, time.Second)
		require.True(t, p.answered(1, 1400, now))
		return p.trusted - now
	}
	now := time.Hour
	for _, want := range []time.Duration{minPMTUTrust, 2 * minPMTUTrust, 4 * minPMTUTrust, maxPMTUTrust, maxPMTUTrust} {
		require.Equal(t, want, confirm(now))
		now = p.trusted
	}
	p.suspect(now)
	p.confirmedByData()
	require.Equal(t, minPMTUTrust, confirm(now))
}

// Probes into silence prove nothing. They leave at growing distances, and a
// search comes to an end.
func TestPMTUSearchInSilence(t *testing.T) {
	p := newPMTUSearch(basePMTU, 1400, 1472, etherIPv4)
	p.begin(0, searchAfter)
	count, now := 0, time.Duration(0)
	for ; p.active(); count++ {
		p.sent(1, now, time.Second)
		now = p.next
		require.False(t, p.expire(now))
	}
	require.Equal(t, maxUnheard, count)
	require.Less(t, now, 2*maxUnheard*time.Second)
	require.Equal(t, 1400, p.size)

	p.suspect(now)
	for range 1000 {
		p.sent(1, now, time.Second)
		require.LessOrEqual(t, p.next-now, maxPMTUWait)
		now = p.next
		require.False(t, p.expire(now))
	}
	p.sent(2, now, time.Second)
	require.True(t, p.answered(2, 1400, now))
	require.False(t, p.active())
}

// What the system refuses is ruled out at once.
func TestPMTUSearchRefused(t *testing.T) {
	p := newPMTUSearch(basePMTU, 1400, 9000, etherIPv4)
	p.begin(0, searchAfter)
	p.sent(1, 0, time.Second)
	require.False(t, p.refuse(0))
	require.Equal(t, etherIPv4, p.probe)
	require.True(t, p.due(0), "the next leaves at once")
	require.False(t, p.answered(1, 9000, 0), "that one is over")

	p.suspect(0)
	p.sent(2, 0, time.Second)
	require.True(t, p.refuse(0))
	require.Equal(t, basePMTU, p.size)
}
