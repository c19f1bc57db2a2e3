package paths

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
)

// cellular returns a link of Sprout's model (K. Winstein et al., NSDI 2013, §3.1), for two
// minutes. Packets leave by a Poisson process whose rate is in Brownian motion of 200
// packets a second per square root of a second, from 0 to 1000. At 0 is an outage, which
// it leaves once a second in the mean.
func cellular(seed uint64) *netsim.Recording {
	random := rand.New(rand.NewPCG(seed, seed))
	r := &netsim.Recording{Slot: 20 * time.Millisecond}
	step := 200 * math.Sqrt(r.Slot.Seconds())
	for rate := 500.0; len(r.Counts) < 120*50; {
		if rate > 0 || random.ExpFloat64() < r.Slot.Seconds() {
			rate = min(max(rate+step*random.NormFloat64(), 0), 1000)
		}
		r.Counts = append(r.Counts, poisson(random, rate*r.Slot.Seconds()))
	}
	return r
}

// poisson draws from a Poisson distribution.
func poisson(random *rand.Rand, mean float64) (n uint16) {
	for sum := random.ExpFloat64(); sum < mean; sum += random.ExpFloat64() {
		n++
	}
	return n
}

// timely are messages of high priority, which leave now and then.
type timely struct {
	mu    sync.Mutex
	sent  int
	delay []time.Duration // of those that have arrived
}

// timely has the server send messages of 100 bytes on a stream of high priority.
func (w *world) timely(each time.Duration) *timely {
	m := new(timely)
	s, err := w.server.OpenStream(context.Background(), &kcp.StreamOptions{Priority: 7, Unordered: true})
	require.NoError(w.t, err)
	go func() {
		r, err := w.client.AcceptStream(context.Background())
		for b := make([]byte, 100); err == nil; {
			if _, err = r.ReadMessage(b); err == nil {
				m.mu.Lock()
				m.delay = append(m.delay, w.net.Elapsed()-time.Duration(binary.BigEndian.Uint64(b)))
				m.mu.Unlock()
			}
		}
	}()
	w.each(each, func() error {
		b := make([]byte, 100)
		binary.BigEndian.PutUint64(b, uint64(w.net.Elapsed()))
		m.mu.Lock()
		m.sent++
		m.mu.Unlock()
		return s.WriteMessage(b, &kcp.MessageOptions{NoWait: true})
	})
	return m
}

// alone returns how long the messages would take if they had the link for themselves.
func alone(link netsim.LinkConfig, each, lasts time.Duration) (delay []time.Duration) {
	l := netsim.NewLink(link, 1)
	for at := time.Duration(0); at < lasts; at += each {
		for _, d := range l.Send(at, make([]byte, 130)) {
			delay = append(delay, d.At-at)
		}
	}
	return delay
}

// p95 returns the 95th percentile.
func p95(delay []time.Duration) time.Duration {
	slices.Sort(delay)
	return delay[len(delay)*95/100]
}

// A download over a cellular link uses it, with a short queue, and messages beside it are
// nearly as soon as without it.
func TestCellular(t *testing.T) {
	testenv.Simulated(t)
	seeds := []uint64{4}
	if testenv.InFull() {
		seeds = append(seeds, 3, 10, 12)
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			p := delay(40 * time.Millisecond)
			p.down.Recording, p.down.Queue = cellular(seed), 1<<20
			full(t, p, 5*time.Second, false, func(f *flow) {
				const each = 50 * time.Millisecond
				m, from, lasts := f.w.timely(each), f.w.net.Elapsed(), lasting(110*time.Second, 60*time.Second)
				s := f.during(lasts)
				share := s.rate * lasts.Seconds() / 1376 / p.down.Recording.Packets(from, from+lasts)
				queue := f.w.net.QueueDelays(serverHost, clientHost).Quantile(0.95)
				m.mu.Lock()
				defer m.mu.Unlock()
				beside, best := p95(m.delay), p95(alone(p.down, each, from+lasts))
				t.Logf("%.3f of the link, queue %v, messages %v, alone %v", share, queue, beside, best)
				require.Greater(t, len(m.delay), m.sent*9/10)
				require.Greater(t, share, 0.82)
				require.Less(t, queue, 250*time.Millisecond)
				require.Less(t, beside, best*5/4+500*time.Millisecond)
			})
		})
	}
}
