package e2e

import (
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// Pauses after which a number of a session's clocks has come around, or half of it has:
// 2^8 epochs of 500 ms, 2^32 µs, 2^16 s, 2^31 ms and 2^32 ms.
var pauses = []time.Duration{
	128 * time.Second, 1 << 32 * time.Microsecond, 1 << 16 * time.Second,
	1<<31*time.Millisecond - time.Second, 1<<31*time.Millisecond + time.Second, 40 * 24 * time.Hour,
	1<<32*time.Millisecond - time.Second, 1 << 32 * time.Millisecond, 1<<32*time.Millisecond + time.Second,
}

// afterPause is what a transfer costs after a pause.
type afterPause struct {
	took         time.Duration
	sent, resent uint64 // segments of both ends
	rtt          time.Duration
}

// transferAfter transfers data both ways over a session that was used, and was then
// idle for a time.
func transferAfter(t *testing.T, pause time.Duration, config *kcp.Config) (cost afterPause) {
	inWorld(t, 1, netsim.LinkConfig{Delay: 20 * time.Millisecond, Rate: 2 << 20}, func(t *testing.T, w *world) {
		a, b, _ := w.pair(config, config)
		bothWays(t, a, b, content(1, 100<<10), content(2, 100<<10))
		time.Sleep(pause)
		before, begun := [2]kcp.ConnStats{a.Stats(), b.Stats()}, time.Now()
		bothWays(t, a, b, content(3, 100<<10), content(4, 100<<10))
		cost.took = time.Since(begun)
		for i, s := range [2]kcp.ConnStats{a.Stats(), b.Stats()} {
			cost.sent += s.Counters.SegmentsSent - before[i].Counters.SegmentsSent
			cost.resent += s.Counters.Retransmits() - before[i].Counters.Retransmits()
			cost.rtt = max(cost.rtt, s.RTT)
		}
		require.NoError(t, a.Abort())
	})
	return cost
}

// A session that was idle for weeks goes on as after an hour. The order of what happens
// at one instant differs from run to run, and with it the figures by a little.
func TestSessionsRest(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]*kcp.Config{
		"plain": {KeepAlive: -1}, "FEC": {KeepAlive: -1, FEC: kcp.FEC{Data: 10, Parity: 3}},
		"cipher": {KeepAlive: -1, Cipher: testAEAD(t)}, "TLS": {KeepAlive: -1, TLS: testTLS()},
	} {
		t.Run(name, func(t *testing.T) {
			want := transferAfter(t, time.Hour, config)
			for i, pause := range pauses {
				if !inFull() && name != "plain" && i%4 != len(name)%4 {
					continue
				}
				got := transferAfter(t, pause, config)
				t.Logf("%v: %+v, not %+v", pause, got, want)
				require.InEpsilon(t, want.took, got.took, 0.1, pause)
				require.InEpsilon(t, want.sent, got.sent, 0.1, pause)
				require.InDelta(t, want.resent, got.resent, 20, pause)
				require.InEpsilon(t, want.rtt, got.rtt, 0.2, pause)
			}
		})
	}
}
