package fair

import (
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// job is work that runs for some virtual time.
type job struct {
	flow  byte
	takes time.Duration
}

// at returns the block of an address.
func at(site, host byte) Block {
	return BlockOf(netip.AddrFrom4([4]byte{10, 0, site, host}), "")
}

// requireEmpty requires that nothing runs or waits.
func (q *Queue) requireEmpty(t *testing.T) {
	t.Helper()
	q.mu.Lock()
	defer q.mu.Unlock()
	require.Empty(t, q.running)
	require.Nil(t, q.turns.First())
	require.Empty(t, q.sites)
	require.Empty(t, q.subnets)
	require.Zero(t, q.waiting)
}

// run has a queue do all jobs, and returns their flows in the order in which they began,
// when each began, and how many ran at a time.
func run(t *testing.T, slots int, jobs []job) (flows []byte, began []time.Duration, most int) {
	synctest.Test(t, func(t *testing.T) {
		q, start := NewQueue(slots, Lease), time.Now()
		type event struct {
			flow byte
			at   time.Duration
		}
		events, running := make(chan event, len(jobs)), make(chan int, 2*len(jobs))
		for _, j := range jobs {
			q.Go(at(0, j.flow), func() {
				events <- event{j.flow, time.Since(start)}
				running <- 1
				time.Sleep(j.takes)
				running <- -1
			})
		}
		n := 0
		for range jobs {
			e := <-events
			flows, began = append(flows, e.flow), append(began, e.at)
		}
		for range 2 * len(jobs) {
			n += <-running
			most = max(most, n)
		}
		synctest.Wait()
		q.requireEmpty(t)
	})
	return flows, began, most
}

// No more than the slots run at a time, and flows take turns, however much each has.
func TestFlowsTakeTurns(t *testing.T) {
	const ms = time.Millisecond
	jobs := []job{{1, ms}, {1, ms}, {1, ms}, {1, ms}, {2, ms}, {3, ms}, {2, ms}}
	flows, began, most := run(t, 1, jobs)
	require.Equal(t, []byte{1, 1, 2, 3, 1, 2, 1}, flows)
	require.Equal(t, []time.Duration{0, ms, 2 * ms, 3 * ms, 4 * ms, 5 * ms, 6 * ms}, began)
	require.Equal(t, 1, most)
	_, began, most = run(t, 3, jobs)
	require.Equal(t, 3, most)
	require.Equal(t, []time.Duration{0, 0, 0, ms, ms, ms, 2 * ms}, began)
}

// Work that does not return keeps no other waiting for longer than its lease, and does
// not give up a slot twice.
func TestLease(t *testing.T) {
	hour, short := time.Hour, time.Millisecond
	flows, began, most := run(t, 1, []job{{1, hour}, {2, hour}, {3, 2 * Lease}, {4, short}, {4, short}})
	require.Equal(t, []byte{1, 2, 3, 4, 4}, flows)
	require.Equal(t, []time.Duration{0, Lease, 2 * Lease, 3 * Lease, 3*Lease + short}, began)
	require.Equal(t, 4, most)
	_, began, _ = run(t, 2, []job{{1, hour}, {2, 3 * short}, {3, hour}, {4, short}})
	require.Equal(t, []time.Duration{0, 0, 3 * short, Lease}, began)
}

// Work may end its goroutine.
func TestWorkThatExits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, done := NewQueue(1, Lease), make(chan bool)
		q.Go(Block{}, runtime.Goexit)
		q.Go(Block{}, func() { close(done) })
		<-done
		synctest.Wait()
		q.requireEmpty(t)
	})
}

// started gives a queue work of a millisecond for each of the networks. order waits for
// all, and returns the networks in the order in which their work began.
func started(t *testing.T, q *Queue, from ...Block) (order func() []Block, all []*Work) {
	var mu sync.Mutex
	var begun []Block
	for _, of := range from {
		all = append(all, q.Go(of, func() {
			mu.Lock()
			begun = append(begun, of)
			mu.Unlock()
			time.Sleep(time.Millisecond)
		}))
	}
	return func() []Block {
		time.Sleep(time.Hour)
		synctest.Wait()
		q.requireEmpty(t)
		return begun
	}, all
}

// A site with many subnets has no more turns than one with a single host, and its subnets
// take turns within it.
func TestSitesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(1, 0)
		order, _ := started(t, q, at(9, 9), at(1, 1), at(1, 1), at(1, 2), at(1, 3), at(1, 4), at(2, 1), at(2, 1))
		require.Equal(t, []Block{at(9, 9), at(1, 1), at(2, 1), at(1, 2), at(2, 1), at(1, 3), at(1, 4), at(1, 1)}, order())
	})
}

// Work that was taken back does not run, and takes no turn; work that has begun is not
// taken back.
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(1, 0)
		order, all := started(t, q, at(9, 9), at(1, 1), at(1, 2), at(2, 1), at(3, 1), at(3, 1))
		require.False(t, all[0].Cancel())
		require.Equal(t, 5, q.Waiting())
		for _, i := range []int{1, 3, 5} {
			require.True(t, all[i].Cancel())
			require.False(t, all[i].Cancel())
		}
		require.Equal(t, []Block{at(9, 9), at(1, 2), at(3, 1)}, order())
		require.False(t, all[2].Cancel())
	})
}

// Without a lease work keeps its slot.
func TestNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, start := NewQueue(1, 0), time.Now()
		q.Go(at(1, 1), func() { time.Sleep(time.Hour) })
		done := make(chan time.Duration)
		q.Go(at(1, 2), func() { done <- time.Since(start) })
		require.Equal(t, time.Hour, <-done)
	})
}
