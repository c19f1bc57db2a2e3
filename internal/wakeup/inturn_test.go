package wakeup

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Goroutines that come at the same instant go on by rank, each at an instant of
// its own, while those that came before have not gone on yet.
func TestOrder(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			o := new(Order)
			type passed struct {
				Rank
				at time.Duration
			}
			start := time.Now()
			var log []passed
			var mu sync.Mutex // turns are instants apart, which orders nothing for the race detector
			note := func(r Rank) {
				mu.Lock()
				defer mu.Unlock()
				log = append(log, passed{r, time.Since(start)})
			}
			var all sync.WaitGroup
			var want []Rank
			for i := range 40 {
				r := Rank{Calls: i >= 20, Group: uint64(i / 5), Member: uint64(i % 5)}
				want = append(want, r)
			}
			for _, i := range rand.Perm(40) {
				all.Go(func() {
					o.Wait(want[i])
					note(want[i])
					if i == 3 {
						o.Wait(Rank{}) // before the others of before, by rank
						note(Rank{Group: 99})
					}
				})
			}
			all.Wait()
			got := make([]Rank, 0, 41)
			for i, p := range log {
				got = append(got, p.Rank)
				require.Equal(t, p.Calls, p.at%2 == 0)
				require.True(t, i == 0 || p.at > log[i-1].at, "two at an instant")
			}
			require.Equal(t, append(slices.Clone(want), Rank{Group: 99}), got)
		})
	}
}
