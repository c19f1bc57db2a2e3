package fairqueue

import (
	"net/netip"
	"runtime"
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

// run has a queue do all jobs, and returns their flows in the order in which they began,
// when each began, and how many ran at a time.
func run(t *testing.T, slots int, jobs []job) (flows []byte, began []time.Duration, most int) {
	synctest.Test(t, func(t *testing.T) {
		q, start := New(slots), time.Now()
		type event struct {
			flow byte
			at   time.Duration
		}
		events, running := make(chan event, len(jobs)), make(chan int, 2*len(jobs))
		for _, j := range jobs {
			q.Go(netip.AddrFrom4([4]byte{10, 0, 0, j.flow}), func() {
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
		require.Empty(t, q.running)
		require.Empty(t, q.turns)
		require.Empty(t, q.waiting)
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
		q, done := New(1), make(chan bool)
		q.Go(netip.Addr{}, runtime.Goexit)
		q.Go(netip.Addr{}, func() { close(done) })
		<-done
		synctest.Wait()
		require.Empty(t, q.running)
	})
}
