package netsim

import (
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// randomConfig returns settings of which about half are off.
func randomConfig(rng *rand.Rand) LinkConfig {
	share := func(most float64) float64 { return max(0, rng.Float64()*2-1) * most }
	number := func(most int) int { return max(0, rng.IntN(2*most)-most) }
	duration := func(most time.Duration) time.Duration { return time.Duration(number(int(most))) }
	return LinkConfig{
		Delay: duration(50 * time.Millisecond), Jitter: duration(50 * time.Millisecond),
		JitterShape: JitterShape(rng.IntN(3)), JitterCorrelation: share(1),
		Loss: share(0.5), Burst: GilbertElliott{share(1), share(1), share(0.1), share(1)},
		Duplicate: share(0.5), Reorder: share(1), Corrupt: share(0.5),
		Rate: int64(number(1_000_000)), Overhead: number(48), Queue: number(20_000), QueuePackets: number(20),
		Bucket: number(20_000),
		MTU:    number(2000), Down: rng.IntN(10) == 0,
	}
}

// conserve drives a link by random calls and checks that each packet is
// accounted for, that no delivery comes before its packet, that the queue keeps
// to its limits, and that nothing is left.
func conserve(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	l := NewLink(randomConfig(rng), seed)
	var now time.Duration
	sentAt := make(map[int]time.Duration)
	var delivered Tally
	take := func(deliveries []Delivery) {
		for _, d := range deliveries {
			delivered.add(len(d.Data))
			if l.Stats().Corrupted == (Tally{}) && len(d.Data) >= 4 {
				sent, ok := sentAt[numberOf(d.Data)]
				require.True(t, ok, "seed %d: a packet that nobody sent", seed)
				require.GreaterOrEqual(t, d.At, sent+d.Queued, "seed %d", seed)
			}
			require.GreaterOrEqual(t, d.Queued, time.Duration(0), "seed %d", seed)
		}
	}
	for i := range 300 {
		now += time.Duration(rng.IntN(5)) * time.Millisecond
		switch rng.IntN(20) {
		case 0:
			l.SetConfig(randomConfig(rng))
		case 1:
			next := randomConfig(rng)
			require.NoError(t, l.Play(Script{{now + time.Duration(rng.IntN(20))*time.Millisecond, func(c *LinkConfig) { *c = next }}}))
		default:
			sentAt[i] = now
			take(l.Send(now, number(i, 4+rng.IntN(1500))))
		}
		packets, bytes := l.Backlog(now)
		require.GreaterOrEqual(t, packets, 0, "seed %d", seed)
		require.GreaterOrEqual(t, bytes, packets, "seed %d", seed)
	}
	requireBalanced(t, l.Stats())
	require.Equal(t, l.Stats().Delivered, delivered, "seed %d", seed)
	packets, bytes := l.Backlog(math.MaxInt64)
	require.Zero(t, packets, "seed %d", seed)
	require.Zero(t, bytes, "seed %d", seed)
}

func FuzzLinkConserves(f *testing.F) {
	for seed := range uint64(60) {
		f.Add(seed)
	}
	f.Fuzz(conserve)
}

// The same of a network: with sockets that come, go and move, and cuts.
func TestNetworkConserves(t *testing.T) {
	for seed := range uint64(10) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			n := NewNetwork(seed, randomConfig(rng))
			hosts := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}
			anyHost := func() string { return hosts[rng.IntN(len(hosts))] }
			var conns []*PacketConn
			for _, h := range hosts {
				conns = append(conns, listen(t, n, h+":1"), listen(t, n, h+":2"))
			}
			sent := int64(0)
			for range 500 {
				c := conns[rng.IntN(len(conns))]
				switch rng.IntN(30) {
				case 0:
					n.SetLink(anyHost(), anyHost(), randomConfig(rng))
				case 1:
					n.Cut(anyHost(), anyHost())
				case 2:
					n.Heal(anyHost(), anyHost())
				case 3:
					require.NoError(t, c.Rebind(anyHost()+":0"))
				case 4:
					time.Sleep(time.Duration(rng.IntN(30)) * time.Millisecond)
				case 5:
					require.NoError(t, n.Play(anyHost(), anyHost(), Outage(n.Elapsed()+10*time.Millisecond, 10*time.Millisecond)))
				default:
					_, err := c.WriteToAddrPort(make([]byte, rng.IntN(1500)), conns[rng.IntN(len(conns))].PublicAddrPort())
					require.NoError(t, err)
					sent++
				}
			}
			time.Sleep(24 * time.Hour)
			synctest.Wait()
			stats := n.Stats()
			require.Equal(t, sent, stats.Sent.Packets, "seed %d", seed)
			requireBalanced(t, stats)
			require.Zero(t, n.parcels.bytes, "seed %d", seed)
			require.Empty(t, n.parcels.heap, "seed %d", seed)
			require.Equal(t, stats, n.LinkStats("", ""), "seed %d", seed)
		})
	}
}
