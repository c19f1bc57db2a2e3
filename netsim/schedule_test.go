package netsim

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestScheduleOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var s schedule[int]
	type entry struct {
		at   time.Duration
		dest int
	}
	var want, got []entry
	for i := range 1000 {
		at := time.Duration(rng.IntN(50)) // many ties
		want = append(want, entry{at, i})
		s.add(nil, flight{at: at, flip: -1}, []byte{byte(i)}, i)
	}
	require.Equal(t, 1000, s.bytes)
	slices.SortStableFunc(want, func(a, b entry) int { return int(a.at - b.at) })
	for now := range time.Duration(50) {
		for p := s.due(now); p != nil; p = s.due(now) {
			require.Equal(t, []byte{byte(p.dest)}, p.data)
			got = append(got, entry{p.at, p.dest})
			s.release(p)
		}
		if at, ok := s.next(); ok {
			require.Greater(t, at, now)
		}
	}
	require.Equal(t, want, got)
	require.Zero(t, s.bytes)
}
