package wakeup

import (
	"math/bits"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/stretchr/testify/require"
)

// sleeper is an element of a queue.
type sleeper struct {
	index int32
	id    int
}

func (s *sleeper) place() *int32 { return &s.index }

// record is a queue and what it has woken.
type record struct {
	Queue[*sleeper]
	epoch time.Time
	mu    sync.Mutex // wake-ups run on goroutines of their own
	woken []*sleeper
	at    []time.Duration
}

func newRecord() *record {
	r := &record{epoch: time.Now()}
	r.Init(r.epoch, (*sleeper).place, nil, func(s *sleeper) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.woken = append(r.woken, s)
		r.at = append(r.at, time.Since(r.epoch))
	}, nil)
	return r
}

// check fails the test if the heap is out of order, the timer fires too late, or
// an element does not know its place. all are the elements, and those wanted are
// to be in the heap.
func (r *record) check(t *testing.T, all []*sleeper, wanted []time.Duration) {
	t.Helper()
	r.Queue.mu.Lock()
	defer r.Queue.mu.Unlock()
	for i, w := range r.heap {
		if int(w.elem.index) != i+1 || i > 0 && r.heap[(i-1)/children].at > w.at || w.at != wanted[w.elem.id] {
			t.Fatalf("entry %d is %v, its element %v", i, w, *w.elem)
		}
	}
	for i, s := range all {
		if wanted[i] != 0 != (s.index != 0) {
			t.Fatalf("element %d has the index %d, and is wanted at %v", i, s.index, wanted[i])
		}
	}
	if len(r.heap) > 0 && (r.armedAt == 0 || r.armedAt > r.heap[0].at) {
		t.Fatalf("armed at %v, the first is at %v", r.armedAt, r.heap[0].at)
	}
}

// A wake-up that is due before the armed one re-arms the timer.
func TestEarlierWakeUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newRecord()
		late, early, removed := &sleeper{}, &sleeper{}, &sleeper{}
		q.Set(late, 10*time.Second)
		q.Set(removed, 2*time.Second)
		q.Set(early, 3*time.Second)
		q.Set(early, time.Second)
		q.Remove(removed)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []*sleeper{early, late}, q.woken)
		require.Equal(t, []time.Duration{time.Second, 10 * time.Second}, q.at)
		require.True(t, q.Idle())
		q.Stop()
		q.Set(late, 61*time.Second)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, q.woken, 2)
	})
}

// A timer that would fire in less than half of the time until the first request is
// set anew. Otherwise it fires once in vain.
func TestTimerMovesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newRecord()
		defer q.Stop()
		armed := func() time.Duration {
			q.Queue.mu.Lock()
			defer q.Queue.mu.Unlock()
			return q.armedAt
		}
		s := &sleeper{}
		q.Set(s, 100*time.Millisecond)
		q.Set(s, 200*time.Millisecond)
		require.Equal(t, 100*time.Millisecond, armed())
		q.Set(s, 201*time.Millisecond)
		require.Equal(t, 201*time.Millisecond, armed())
		q.Set(s, 300*time.Millisecond)
		time.Sleep(201 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, 300*time.Millisecond, armed())
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, []time.Duration{300 * time.Millisecond}, q.at)
	})
}

// Each element is woken once, at the time asked for last, whatever was asked for
// before, and not at all after Remove.
func TestRandomRequests(t *testing.T) {
	seeds := uint64(20)
	if testing.Short() {
		seeds = 5
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			q := newRecord()
			all := make([]*sleeper, 1+random.IntN(60))
			want := make([]time.Duration, len(all)) // 0: no wake-up
			for i := range all {
				all[i] = &sleeper{id: i}
			}
			for range 500 {
				i, now := random.IntN(len(all)), time.Since(q.epoch)
				switch random.IntN(4) {
				case 0:
					q.Remove(all[i])
					want[i] = 0
				case 1:
					time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond)
					synctest.Wait()
				default:
					want[i] = now + time.Duration(1+random.IntN(300))*time.Millisecond
					q.Set(all[i], want[i])
				}
				for j, s := range q.woken {
					require.Equal(t, want[s.id], q.at[j], "seed %d", seed)
					want[s.id] = 0
				}
				q.woken, q.at = nil, nil
				q.check(t, all, want)
			}
			q.Stop() // the goroutine that waits for the next wake-up ends
		})
	}
}

// Elements may be set and removed while others are woken. wake may ask for the
// next wake-up, as the lock is not held.
func TestConcurrentUse(t *testing.T) {
	var q Queue[*sleeper]
	var woken sync.WaitGroup
	again := make([]int, 4)
	q.Init(time.Now(), (*sleeper).place, nil, func(s *sleeper) {
		if again[s.id]++; again[s.id] == 10 {
			woken.Done()
			return
		}
		q.Set(s, 0)
	}, nil)
	var others sync.WaitGroup
	for i := range again {
		woken.Add(1)
		q.Set(&sleeper{id: i}, 0)
		others.Go(func() {
			s := new(sleeper)
			for range 1000 {
				q.Set(s, time.Hour)
				q.Remove(s)
			}
		})
	}
	others.Wait()
	woken.Wait()
	q.Stop()
	require.Empty(t, q.heap)
}

// What a request moves in the heap grows with the logarithm of the number of
// requests.
func TestWorkOfRequests(t *testing.T) {
	for _, n := range []int{100, 10000} {
		calls, random := 0, rand.New(rand.NewPCG(1, 2))
		var q Queue[*sleeper]
		q.Init(time.Now(), func(s *sleeper) *int32 {
			calls++
			return &s.index
		}, nil, func(*sleeper) {}, nil)
		most := bits.Len(uint(n))/2 + 5
		count := func(f func()) {
			before := calls
			f()
			require.LessOrEqual(t, calls-before, most, "with %d requests", n)
		}
		all := make([]*sleeper, n)
		for i := range all {
			all[i] = new(sleeper)
			count(func() { q.Set(all[i], time.Hour+time.Duration(random.IntN(1e9))) })
		}
		for _, s := range all {
			count(func() { q.Set(s, time.Hour+time.Duration(random.IntN(1e9))) })
		}
		for _, s := range all {
			count(func() { q.Remove(s) })
		}
		q.Stop()
	}
}

// The lag of wake-ups is that of the last 10 to 20 seconds, in powers of two.
func TestLag(t *testing.T) {
	var l Lag
	summary := func(now time.Duration) [2]time.Duration {
		p50, most := l.Summary(now)
		return [2]time.Duration{p50, most}
	}
	require.Equal(t, [2]time.Duration{}, summary(0))
	for i := range 10 {
		l.Record(time.Duration(i)*100*time.Microsecond, time.Second)
	}
	require.Equal(t, [2]time.Duration{512 * time.Microsecond, 900 * time.Microsecond}, summary(LagTime-1))
	l.Record(time.Hour, LagTime)
	require.Equal(t, [2]time.Duration{512 * time.Microsecond, time.Hour}, summary(2*LagTime-1))
	require.Equal(t, [2]time.Duration{1 << 23 * time.Microsecond, time.Hour}, summary(2*LagTime), "the first ten are forgotten")
	require.Equal(t, [2]time.Duration{}, summary(3*LagTime))
	l.Record(-1, 7*LagTime)
	require.Equal(t, [2]time.Duration{}, summary(7*LagTime))
	l.Record(3*time.Microsecond, 7*LagTime)
	l.Record(3*time.Microsecond, 7*LagTime)
	require.Equal(t, [2]time.Duration{3 * time.Microsecond, 3 * time.Microsecond}, summary(7*LagTime), "not above the longest")
	require.Equal(t, [2]time.Duration{}, summary(70*LagTime))
}

// The lag of queues is how late their timers were. A request for a time that has passed
// is not late.
func TestLagOfQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var late []time.Duration
		var q Queues[*sleeper]
		q.Init(6, time.Now(), (*sleeper).place, func(s *sleeper) uint32 { return uint32(s.id) }, nil, func(*sleeper) {},
			func(d time.Duration) {
				mu.Lock()
				defer mu.Unlock()
				late = append(late, d)
			})
		lag := func() [2]time.Duration { // without probes
			var all Lag
			for i := range q.all {
				q.all[i].addLag(&all)
			}
			p50, most := all.summary()
			return [2]time.Duration{p50, most}
		}
		require.Equal(t, [2]time.Duration{}, lag())
		time.Sleep(time.Second)
		q.Set(&sleeper{}, time.Millisecond)
		synctest.Wait()
		require.Equal(t, []time.Duration{0}, late)
		require.Equal(t, [2]time.Duration{}, lag())
		for i, d := range []time.Duration{100, 300} {
			q.Set(&sleeper{id: 4 + i}, 2*time.Second)
			part := &q.all[1+i]
			part.mu.Lock()
			part.firesAt -= d * time.Millisecond // as if it had been to fire then
			part.mu.Unlock()
		}
		time.Sleep(time.Second)
		synctest.Wait()
		require.ElementsMatch(t, []time.Duration{0, 100 * time.Millisecond, 300 * time.Millisecond}, late)
		require.Equal(t, [2]time.Duration{131072 * time.Microsecond, 300 * time.Millisecond}, lag())
	})
}

// While somebody looks at the lag, a process in which nothing is due sees that it does
// not run. When nobody does, nothing fires.
func TestLagIsProbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Queues[*sleeper]
		start := time.Now()
		q.Init(6, start, (*sleeper).place, func(*sleeper) uint32 { return 0 }, nil, func(*sleeper) {}, nil)
		defer q.Stop()
		first := &q.all[0]
		probe := func() (at, fired time.Duration) {
			first.mu.Lock()
			defer first.mu.Unlock()
			return first.probeAt, time.Since(start)
		}
		at, _ := probe()
		require.Zero(t, at)
		_, most := q.Lag(true)
		require.Zero(t, most)
		time.Sleep(10 * time.Second)
		first.mu.Lock()
		first.probeAt -= 300 * time.Millisecond // as if it had been to fire then
		first.mu.Unlock()
		time.Sleep(time.Second)
		p50, most := q.Lag(true)
		require.LessOrEqual(t, p50, time.Microsecond)
		require.Equal(t, 300*time.Millisecond, most)
		require.True(t, q.Idle(), "no element waits")
		time.Sleep(probeFor - time.Second + probeEvery/2) // between two probes
		at, now := probe()
		require.Greater(t, at, now)
		time.Sleep(2 * time.Second)
		at, _ = probe()
		require.Zero(t, at)
		_, most = q.Lag(true)
		require.Zero(t, most)
		at, now = probe()
		require.InDelta(t, probeEvery, at-now, float64(probeEvery), "they begin again")
		q.Stop()
		time.Sleep(time.Minute)
		_, _ = q.Lag(true)
		time.Sleep(time.Minute)
		stopped, _ := probe()
		require.Equal(t, at, stopped)
	})
}

// An element is in one queue, and the others do not know it.
func TestQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		start, woken := time.Now(), []int(nil)
		var q Queues[*sleeper]
		q.Init(4, start, (*sleeper).place, func(s *sleeper) uint32 { return uint32(s.id) }, nil,
			func(s *sleeper) {
				mu.Lock()
				defer mu.Unlock()
				woken = append(woken, s.id)
			}, nil)
		require.True(t, q.Idle())
		all := []*sleeper{{id: 0}, {id: 1}, {id: 2}, {id: 7}}
		for i, s := range all {
			q.Set(s, time.Duration(4-i)*time.Second)
		}
		require.Len(t, q.all[0].heap, 2)
		require.Len(t, q.all[1].heap, 2)
		q.Set(all[0], 500*time.Millisecond)
		q.Remove(all[1])
		require.False(t, q.Idle())
		time.Sleep(5 * time.Second)
		synctest.Wait()
		require.Equal(t, []int{0, 7, 2}, woken)
		require.True(t, q.Idle())
		q.Set(all[1], time.Hour)
		q.Stop()
		require.Zero(t, all[1].index)
		require.True(t, q.all[1].stopped)
	})
}

// There is a queue for each two goroutines that run at a time, within limits.
func TestQueuesOfProcessors(t *testing.T) {
	for procs, want := range map[int]int{1: 1, 2: 1, 3: 2, 4: 2, 31: 16, 32: 16, 33: 16, 256: 16} {
		var q Queues[*sleeper]
		q.Init(procs, time.Now(), nil, nil, nil, nil, nil)
		require.Len(t, q.all, want, procs)
	}
}

// The constants of the package are the figures that RULES.md says.
func TestLagFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| `stats.Endpoint.Lag`", "10 to 20 s", LagTime},
		{"| `stats.Endpoint.Lag`", "90 s", probeFor},
		{"| `stats.Endpoint.Lag`", "100 ms", probeEvery},
		{"| Wake queues", "16", mostQueues},
	})
}
