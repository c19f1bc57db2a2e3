package netpath

import (
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/stretchr/testify/require"
)

// searchOn runs s to its end on a path that takes packets of up to path bytes. It
// returns the sizes probed, and the time of the end.
func searchOn(t *testing.T, s *Search, path int, now time.Duration) (sizes []int, end time.Duration) {
	t.Helper()
	for nonce := uint32(1); s.Active(); nonce++ {
		require.Less(t, len(sizes), 100)
		require.True(t, s.Due(s.Next()))
		require.False(t, s.Next() > 0 && s.Due(s.Next()-1))
		now = max(now, s.Next())
		if s.Outstanding() {
			s.Heard(now)
			if s.Expire(now); !s.Active() {
				break
			}
		}
		s.Sent(nonce, now, 0)
		sizes = append(sizes, s.ProbeSize())
		require.False(t, s.Answered(nonce+1, s.ProbeSize(), now))
		require.False(t, s.Answered(nonce, s.ProbeSize()+1, now))
		if s.ProbeSize() <= path {
			require.True(t, s.Answered(nonce, s.ProbeSize(), now))
			require.False(t, s.Answered(nonce, s.ProbeSize(), now), "once")
		}
	}
	return sizes, now
}

func TestSearch(t *testing.T) {
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
		s := NewSearch(min(BaseMTU, test.size), test.size, test.limit, EtherIPv4)
		s.Begin(0, SearchAfter-1)
		require.False(t, s.Active(), "too little was sent")
		s.Begin(0, SearchAfter)
		sizes, _ := searchOn(t, s, test.path, 0)
		if test.probed != nil {
			require.Equal(t, test.probed, sizes)
		}
		require.InDelta(t, test.end, s.Size(), Step)
		require.LessOrEqual(t, s.Size(), test.path)
		if len(sizes) > 0 {
			require.LessOrEqual(t, len(sizes), 45)
			require.Equal(t, test.limit, sizes[0])
		}
	}
}

// A search is repeated after ten minutes, if enough was sent since.
func TestSearchIsRepeated(t *testing.T) {
	s := NewSearch(BaseMTU, 1400, 1472, EtherIPv4)
	s.Begin(0, 100)
	_, now := searchOn(t, s, 1400, 0)
	s.Begin(now+RaiseAfter-1, 100000)
	require.False(t, s.Active())
	s.Begin(now+RaiseAfter, 100000+SearchAfter-1)
	require.False(t, s.Active())
	s.Begin(now+RaiseAfter, 100000+SearchAfter)
	require.True(t, s.Active())
	_, now = searchOn(t, s, 1472, now+RaiseAfter)
	require.Equal(t, 1472, s.Size())
	s.Begin(now+2*RaiseAfter, 1e6)
	require.False(t, s.Active(), "there is no more to be had")
}

// In doubt the size in use is probed. If it does not pass, the sizes from the
// base up to it are searched.
func TestSearchInDoubt(t *testing.T) {
	s := NewSearch(BaseMTU, 1400, 1472, EtherIPv4)
	s.Suspect(0)
	sizes, _ := searchOn(t, s, 1400, 0)
	require.Equal(t, []int{1400}, sizes)
	require.Equal(t, 1400, s.Size())
	s.Begin(0, SearchAfter)
	require.True(t, s.Active(), "the doubt does not put the search off")
	sizes, _ = searchOn(t, s, 1472, 0)
	require.Equal(t, []int{1472}, sizes)

	s.Suspect(0)
	sizes, now := searchOn(t, s, 1272, 0)
	require.Equal(t, []int{1472, 1472, 1472, 1336, 1336, 1336, 1268}, sizes[:7])
	require.Equal(t, 1268, s.Size())
	s.Begin(now+1, 1e6)
	require.False(t, s.Active())
}

// Doubts that probes dispel again and again are raised at growing intervals, up
// to a limit, until data of the size arrives.
func TestSearchTrustGrows(t *testing.T) {
	s := NewSearch(BaseMTU, 1400, 1400, EtherIPv4)
	confirm := func(now time.Duration) time.Duration {
		s.Suspect(now)
		s.Sent(1, now, time.Second)
		require.True(t, s.Answered(1, 1400, now))
		return s.trusted - now
	}
	now := time.Hour
	for _, want := range []time.Duration{minTrust, 2 * minTrust, 4 * minTrust, maxTrust, maxTrust} {
		require.Equal(t, want, confirm(now))
		now = s.trusted
	}
	s.Suspect(now)
	s.ConfirmedByData(now)
	require.Equal(t, minTrust, confirm(now))
}

// Probes into silence prove nothing. They leave at growing intervals, and a
// search ends. Confirming the size in use does not.
func TestSearchInSilence(t *testing.T) {
	s := NewSearch(BaseMTU, 1400, 1472, EtherIPv4)
	s.Begin(0, SearchAfter)
	count, now := 0, time.Duration(0)
	for ; s.Active(); count++ {
		s.Sent(1, now, time.Second)
		now = s.Next()
		require.False(t, s.Expire(now))
	}
	require.Equal(t, maxUnheard, count)
	require.Less(t, now, 2*maxUnheard*time.Second)
	require.Equal(t, 1400, s.Size())

	s.Suspect(now)
	for range 1000 {
		s.Sent(1, now, time.Second)
		require.LessOrEqual(t, s.Next()-now, MaxWait)
		now = s.Next()
		require.False(t, s.Expire(now))
	}
	s.Sent(2, now, time.Second)
	require.True(t, s.Answered(2, 1400, now))
	require.False(t, s.Active())
}

// A probe is given as long as answers take, on a path that is longer than MaxWait too.
// Once the small packet is answered, the rest of that shrinks to a quarter.
func TestProbeWaits(t *testing.T) {
	for _, test := range []struct{ wait, silent, answered, heard time.Duration }{
		{10 * time.Millisecond, minWait, 10 * time.Millisecond, minWait},
		{time.Second, time.Second, 600 * time.Millisecond, 800 * time.Millisecond},
		{8 * time.Second, 8 * time.Second, 4 * time.Second, 5 * time.Second},
	} {
		s := NewSearch(FloorMTU, 1400, 1400, EtherIPv4)
		s.Suspect(0)
		s.Sent(1, 0, test.wait)
		require.Equal(t, test.silent, s.Next())
		s.Heard(test.answered)
		require.Equal(t, test.heard, s.Next())
		s.Expire(s.Next())
		s.Sent(2, 0, test.wait)
		require.Equal(t, test.silent, s.Next(), "there was no silence")
	}
}

// After silence, a path that takes packets again is probed at once.
func TestSearchRevived(t *testing.T) {
	s := NewSearch(BaseMTU, 1400, 1472, EtherIPv4)
	s.Revive(0)
	require.False(t, s.Active(), "there is nothing to probe")
	s.Begin(0, SearchAfter)
	s.Sent(1, 0, time.Second)
	s.Revive(1)
	require.True(t, s.Outstanding(), "nothing shows an outage")
	now := s.Next()
	require.False(t, s.Expire(now))
	s.Sent(2, now, time.Second)
	s.Revive(now + 1)
	require.False(t, s.Outstanding())
	require.True(t, s.Due(now+1))
	require.Equal(t, 1472, s.ProbeSize())
}

// A doubt about the size in use does not end a search for a larger one.
func TestSearchGoesOnAfterDoubt(t *testing.T) {
	for name, confirm := range map[string]func(s *Search){
		"probe": func(s *Search) {
			s.Sent(1, 0, time.Second)
			require.True(t, s.Answered(1, 1200, 0))
		},
		"data": func(s *Search) { s.ConfirmedByData(0) },
	} {
		s := NewSearch(BaseMTU, 1400, 1472, EtherIPv4)
		s.Begin(0, SearchAfter)
		_, now := searchOn(t, s, 1472, 0)
		s.Suspect(now)
		for range maxProbes { // the path takes no more than 1268
			s.Sent(1, now, time.Second)
			s.Heard(now)
			now = s.Next()
			s.Expire(now)
		}
		require.Equal(t, BaseMTU, s.Size())
		require.Equal(t, 1336, s.ProbeSize())
		s.Suspect(now)
		require.Equal(t, 1200, s.ProbeSize(), name)
		confirm(s)
		require.False(t, s.Confirming())
		_, _ = searchOn(t, s, 1268, now)
		require.Equal(t, 1268, s.Size(), name)
	}
}

// What the system refuses is lowered at once, and the search goes on below it. What is
// smaller than the size in use cannot be refused for its size twice.
func TestSearchLowered(t *testing.T) {
	s := NewSearch(BaseMTU, 1400, 9000, EtherIPv4)
	require.True(t, s.Lower(1400, 0))
	require.Equal(t, BaseMTU, s.Size())
	sizes, _ := searchOn(t, s, 1250, 0)
	require.Equal(t, []int{1300, 1300, 1300, 1250}, sizes[:4])
	require.Equal(t, 1250, s.Size())
	require.False(t, s.Lower(1400, 0), "that is known")
	require.False(t, s.Active())
	require.False(t, s.Lower(BaseMTU, 0), "there is nothing smaller")
	require.True(t, s.Lower(1210, 0))
	require.Equal(t, BaseMTU, s.Size())
	require.False(t, s.Active(), "exact enough")

	s = NewSearch(BaseMTU, 1400, 1472, EtherIPv4)
	s.Begin(0, SearchAfter)
	s.Sent(1, 0, time.Second)
	require.False(t, s.Lower(1460, 0), "the size in use passes")
	require.Equal(t, 1430, s.ProbeSize())
	require.False(t, s.Answered(1, 1472, 0), "that one is over")
	require.False(t, s.Lower(1470, 0))
	require.Equal(t, 1430, s.ProbeSize())

	s = NewSearch(500, 500, 1472, EtherIPv4)
	require.False(t, s.Lower(500, 0), "there is nothing smaller")
}

// The constants of the package are the figures that RULES.md says.
func TestMTUFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| DPLPMTUD (RFC", "64 full segments", SearchAfter},
		{"| DPLPMTUD (RFC", "20 bytes", Step},
		{"| DPLPMTUD (RFC", "3 lost probes", maxProbes},
		{"| DPLPMTUD (RFC", "10 in silence", maxUnheard},
		{"| DPLPMTUD (RFC", "10 min", RaiseAfter},
		{"| DPLPMTUD: a probe", "200 ms", minWait},
		{"| DPLPMTUD: a probe", "2 s", MaxWait},
		{"| Black hole (RFC", "1200 bytes", BaseMTU},
		{"| Black hole to", "15 s", doubtTime},
		{"| Only these may", "548 bytes", FloorMTU},
		{"| Black hole (RFC", "1 s", minTrust},
		{"| Black hole (RFC", "8 s", maxTrust},
	})
}
