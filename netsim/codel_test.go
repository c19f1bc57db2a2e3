package netsim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// reference is a link with CoDel as RFC 8289, section 5, writes it down: a queue
// that is asked for a packet whenever the line is free.
type reference struct {
	rate             int64
	target, interval time.Duration
	free             time.Duration
	queue            []arrived
	dropped          []int
	sent             []departed

	firstAbove, dropNext time.Duration
	count, lastCount     int
	dropping             bool
	maxPacket            int
}

type arrived struct {
	id, size int
	at       time.Duration
}

type departed struct {
	id   int
	at   time.Duration // when it has left
	wait time.Duration
}

func (r *reference) doDequeue(now time.Duration) (p *arrived, ok bool) {
	if len(r.queue) == 0 {
		r.firstAbove = 0
		return nil, false
	}
	p = &arrived{}
	*p = r.queue[0]
	r.queue = r.queue[1:]
	r.maxPacket = max(r.maxPacket, p.size)
	left := 0
	for _, q := range r.queue {
		left += q.size
	}
	if now-p.at < r.target || left <= r.maxPacket {
		r.firstAbove = 0
	} else if r.firstAbove == 0 {
		r.firstAbove = now + r.interval
	} else if now >= r.firstAbove {
		ok = true
	}
	return p, ok
}

func (r *reference) control(t time.Duration) time.Duration {
	return t + time.Duration(float64(r.interval)/math.Sqrt(float64(r.count)))
}

func (r *reference) dequeue(now time.Duration) *arrived {
	p, ok := r.doDequeue(now)
	if p == nil {
		r.dropping = false
		return nil
	}
	if r.dropping {
		if !ok {
			r.dropping = false
		}
		for now >= r.dropNext && r.dropping {
			r.dropped = append(r.dropped, p.id)
			r.count++
			if p, ok = r.doDequeue(now); !ok {
				r.dropping = false
			} else {
				r.dropNext = r.control(r.dropNext)
			}
		}
	} else if ok {
		r.dropped = append(r.dropped, p.id)
		p, _ = r.doDequeue(now)
		r.dropping = true
		delta := r.count - r.lastCount
		r.count = 1
		if delta > 1 && now-r.dropNext < 16*r.interval {
			r.count = delta
		}
		r.dropNext = r.control(now)
		r.lastCount = r.count
	}
	return p
}

// run has the line take packets until a time, or for ever.
func (r *reference) run(until time.Duration) {
	for len(r.queue) > 0 && max(r.free, r.queue[0].at) <= until {
		now := max(r.free, r.queue[0].at)
		if p := r.dequeue(now); p != nil {
			r.free = now + time.Duration(int64(p.size)*int64(time.Second)/r.rate)
			r.sent = append(r.sent, departed{p.id, r.free, now - p.at})
		}
	}
}

func TestCoDelIsThatOfTheRFC(t *testing.T) {
	for seed := range uint64(2) {
		rng := rand.New(rand.NewPCG(seed, 1))
		cfg := CoDel{Enabled: true}
		ref := reference{rate: 1_000_000, target: codelTarget, interval: codelInterval}
		if seed%2 == 1 {
			cfg.Target, cfg.Interval = 20*time.Millisecond, 300*time.Millisecond
			ref.target, ref.interval = cfg.Target, cfg.Interval
		}
		l := NewLink(LinkConfig{Rate: ref.rate, CoDel: cfg}, seed)
		var got []departed
		take := func(deliveries []Delivery) {
			for _, d := range deliveries {
				got = append(got, departed{numberOf(d.Data), d.At, d.Queued})
			}
		}
		now := time.Duration(0)
		for i := range 10_000 {
			size := 1000 * (1 + rng.IntN(2)) // whole milliseconds, so that times compare
			load := 0.7
			if i/2000%2 == 1 {
				load = 1.5
			}
			now += time.Duration(rng.ExpFloat64() * 1.5e6 / load)
			ref.run(now)
			ref.queue = append(ref.queue, arrived{i, size, now})
			ref.run(now)
			if rng.IntN(2) == 0 {
				take(l.Poll(now))
			}
			take(l.Send(now, number(i, size)))
		}
		ref.run(math.MaxInt64)
		take(l.Poll(math.MaxInt64))
		require.Greater(t, len(ref.dropped), 100, "seed %d", seed)
		require.Equal(t, ref.sent, got, "seed %d", seed)
		stats := l.Stats()
		require.EqualValues(t, len(ref.dropped), stats.Managed.Packets)
		requireBalanced(t, stats)
	}
}

func ExampleLink() {
	// A link of 1 MB/s whose queue takes 3 kB.
	l := NewLink(LinkConfig{Rate: 1_000_000, Queue: 3000, Delay: 20 * time.Millisecond}, 1)
	for i := range 5 {
		for _, d := range l.Send(0, make([]byte, 1000)) {
			fmt.Printf("packet %d arrives after %v, of which it waited %v\n", i, d.At, d.Queued)
		}
	}
	fmt.Println("dropped:", l.Stats().Overflow.Packets)
	// Output:
	// packet 0 arrives after 21ms, of which it waited 0s
	// packet 1 arrives after 22ms, of which it waited 1ms
	// packet 2 arrives after 23ms, of which it waited 2ms
	// packet 3 arrives after 24ms, of which it waited 3ms
	// dropped: 1
}

// CoDel that is switched on anew knows nothing of the time before: a queue that
// stands by then has an interval to go away.
func TestCoDelBeginsAnew(t *testing.T) {
	on := LinkConfig{Rate: 1_000_000, CoDel: CoDel{Enabled: true}}
	l := NewLink(on, 1)
	dropped := func() int64 { return l.Stats().Managed.Packets }
	step := func(now time.Duration) {
		l.Poll(now)
		l.Send(now, make([]byte, 1000))
	}
	for range 300 {
		l.Send(0, make([]byte, 1000))
	}
	now := time.Duration(0)
	for ; dropped() == 0; now += ms {
		step(now)
	}
	require.Equal(t, 106*ms, now, "the first packet above the target was the sixth")
	l.SetConfig(LinkConfig{Rate: on.Rate})
	for range 100 {
		now += ms
		step(now)
	}
	l.SetConfig(on)
	before := dropped()
	for range 100 {
		now += ms
		step(now)
	}
	require.Equal(t, before, dropped())
	for range 10 {
		now += ms
		step(now)
	}
	require.Greater(t, dropped(), before)
}
