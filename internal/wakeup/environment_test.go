package wakeup

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// newRun returns a run with a seed.
func newRun(seed uint64) *Run {
	r := new(Run)
	r.Seed(seed)
	return r
}

// A seed gives the same numbers in each run. Another seed gives others, and so does
// another environment of the run.
func TestNumbersOfSeed(t *testing.T) {
	draw := func(seed uint64) (all []uint32) {
		r := newRun(seed)
		for range 3 {
			e := r.Environment()
			all = append(all, e.Uint32(), e.Token())
		}
		return all
	}
	first := draw(1)
	require.Equal(t, first, draw(1))
	all := append(first, draw(2)...)
	var none *Environment
	all = append(all, none.Uint32(), none.Token())
	slices.Sort(all)
	require.Len(t, slices.Compact(all), 14) // two are equal once in 50 million runs
}

// The nonces of packets without a number are left to the cipher, but in a Run.
func TestNoncesAreTheCiphers(t *testing.T) {
	var none *Environment
	require.True(t, none.Nonces() == nil)
	require.False(t, newRun(1).Environment().Nonces() == nil)
}

// Goroutines of several environments that are woken at one instant go on by the order
// in which these were made, then by what they belong to and by place. Those of the
// application come last. A lock that they hold is free meanwhile.
func TestWoken(t *testing.T) {
	type who struct {
		of, conv int
		Place
	}
	var want []who
	for _, places := range [][]Place{{AtReader, AtTLS}, {AtGroup, AtRead, AtStream(0, false), AtStream(0, true), AtStream(1, false)}} {
		for of := range 2 {
			for conv := range 2 {
				for _, p := range places {
					want = append(want, who{of, conv, p})
				}
			}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRun(1)
		envs := []*Environment{r.Environment(), r.Environment()}
		var log []who
		var lock sync.Mutex // guards log
		var all sync.WaitGroup
		for _, w := range slices.Backward(want) {
			all.Go(func() {
				lock.Lock()
				defer lock.Unlock()
				envs[w.of].Woken(&lock, uint32(w.conv), w.Place)
				log = append(log, w)
			})
		}
		all.Wait()
		require.Equal(t, want, log)
	})
}

// The real environment lets goroutines go on at once, with the lock that they hold.
func TestWokenInReality(t *testing.T) {
	var none *Environment
	var lock sync.Mutex
	lock.Lock()
	none.Woken(&lock, 1, AtAccept)
	require.False(t, lock.TryLock())
	none.Woken(nil, 1, AtReader)
	none.Settle()
}

// Settle waits for what takes several turns, too, such as the timer of many sessions.
func TestSettleWaitsForSeveralTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newRun(1).Environment()
		var turns atomic.Int32
		go func() {
			for range 3 {
				e.Woken(nil, 1, AtWakeUp)
				turns.Add(1)
			}
		}()
		synctest.Wait()
		e.Settle()
		require.EqualValues(t, 3, turns.Load())
	})
}
