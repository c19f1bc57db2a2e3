package netsim

import (
	"bytes"
	"math"
	"math/bits"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// requireBalanced checks that every packet is accounted for, when none is
// underway.
func requireBalanced(t *testing.T, s LinkStats) {
	t.Helper()
	in, out := s.Sent, s.Delivered
	in.merge(s.Duplicated)
	for _, tally := range []Tally{s.Lost, s.Overflow, s.Managed, s.TooBig, s.Filtered, s.Unreachable} {
		out.merge(tally)
	}
	require.Equal(t, in, out, "%+v", s)
}

// requireShare checks a count against its expectation, to five standard
// deviations.
func requireShare(t *testing.T, name string, got int64, trials int, p float64) {
	t.Helper()
	mean := float64(trials) * p
	bound := 5 * math.Sqrt(mean*(1-p))
	require.InDelta(t, mean, float64(got), bound, name)
}

// number is a packet that names its place in the order.
func number(i, size int) []byte {
	b := make([]byte, size)
	b[0], b[1], b[2], b[3] = byte(i>>24), byte(i>>16), byte(i>>8), byte(i)
	return b
}

func numberOf(b []byte) int {
	return int(b[0])<<24 | int(b[1])<<16 | int(b[2])<<8 | int(b[3])
}

func TestLinkPerfect(t *testing.T) {
	l := NewLink(LinkConfig{}, 1)
	packet := []byte("packet")
	got := l.Send(time.Second, packet)
	require.Equal(t, []Delivery{{At: time.Second, Data: []byte("packet")}}, got)
	packet[0] = 'X'
	require.Equal(t, "packet", string(got[0].Data), "Data shares memory with the packet")
	require.Equal(t, LinkStats{Sent: Tally{1, 6}, Delivered: Tally{1, 6}}, l.Stats())
}

func TestLinkConfigValidate(t *testing.T) {
	require.NoError(t, LinkConfig{}.Validate())
	require.NoError(t, LinkConfig{Loss: 1, Duplicate: 1, Reorder: 1, Corrupt: 1, Delay: 1, Jitter: 1, Rate: 1, Queue: 1, MTU: 1}.Validate())
	for field, cfg := range map[string]LinkConfig{
		"Delay": {Delay: -1}, "Jitter": {Jitter: -1}, "Loss": {Loss: 1.1}, "Duplicate": {Duplicate: -0.1},
		"Reorder": {Reorder: math.NaN()}, "Corrupt": {Corrupt: math.Inf(1)}, "Rate": {Rate: -1},
		"Queue": {Queue: -1}, "MTU": {MTU: -1},
	} {
		require.ErrorContains(t, cfg.Validate(), "LinkConfig."+field)
		require.Panics(t, func() { NewLink(cfg, 1) }, field)
		require.Panics(t, func() { NewLink(LinkConfig{}, 1).SetConfig(cfg) }, field)
	}
}

func TestLinkShares(t *testing.T) {
	const packets, size = 100_000, 20
	cfg := LinkConfig{Loss: 0.1, Duplicate: 0.05, Corrupt: 0.02}
	l := NewLink(cfg, 7)
	clean := make([]byte, size)
	lost, twice, corrupted := 0, 0, 0
	flipped := make([]int, size*8)
	for range packets {
		deliveries := l.Send(0, clean)
		switch len(deliveries) {
		case 0:
			lost++
		case 2:
			twice++
		}
		for _, d := range deliveries {
			if bytes.Equal(d.Data, clean) {
				continue
			}
			corrupted++
			ones := 0
			for i, b := range d.Data {
				ones += bits.OnesCount8(b)
				if b != 0 {
					flipped[i*8+bits.TrailingZeros8(b)]++
				}
			}
			require.Equal(t, 1, ones, "bits flipped in one packet")
		}
	}
	requireShare(t, "lost", int64(lost), packets, cfg.Loss)
	requireShare(t, "duplicated", int64(twice), packets-lost, cfg.Duplicate)
	requireShare(t, "corrupted", int64(corrupted), packets-lost+twice, cfg.Corrupt)
	for bit, n := range flipped {
		require.NotZero(t, n, "bit %d is never flipped", bit)
	}
	tally := func(n int) Tally { return Tally{int64(n), int64(n) * size} }
	require.Equal(t, LinkStats{
		Sent: tally(packets), Delivered: tally(packets - lost + twice),
		Lost: tally(lost), Duplicated: tally(twice), Corrupted: tally(corrupted),
	}, l.Stats())
}

func TestLinkCertainties(t *testing.T) {
	never, always := NewLink(LinkConfig{Loss: 1}, 1), NewLink(LinkConfig{Duplicate: 1, Corrupt: 1}, 1)
	for range 1000 {
		require.Empty(t, never.Send(0, []byte("x")))
		deliveries := always.Send(0, []byte("x"))
		require.Len(t, deliveries, 2)
		for _, d := range deliveries {
			require.NotEqual(t, "x", string(d.Data))
		}
	}
	require.Len(t, always.Send(0, nil), 2, "an empty packet has no bit to flip, but is a packet")
}

func TestLinkJitterIsUniform(t *testing.T) {
	const packets = 100_000
	cfg := LinkConfig{Delay: 20 * time.Millisecond, Jitter: 40 * time.Millisecond}
	l := NewLink(cfg, 3)
	var quarters [4]int64
	for i := range packets {
		now := time.Duration(i) * time.Second // too far apart to wait for each other
		extra := l.Send(now, nil)[0].At - now - cfg.Delay
		require.GreaterOrEqual(t, extra, time.Duration(0))
		require.Less(t, extra, cfg.Jitter)
		quarters[4*extra/cfg.Jitter]++
	}
	for _, n := range quarters {
		requireShare(t, "quarter of the jitter", n, packets, 0.25)
	}
}

func TestLinkKeepsOrderWithoutReorder(t *testing.T) {
	l := NewLink(LinkConfig{Delay: 20 * time.Millisecond, Jitter: 40 * time.Millisecond, Duplicate: 0.1, Loss: 0.1}, 5)
	last := time.Duration(0)
	for i := range 10_000 {
		for _, d := range l.Send(time.Duration(i)*time.Millisecond, nil) {
			require.GreaterOrEqual(t, d.At, last, "packet %d", i)
			last = d.At
		}
	}
	require.Zero(t, l.Stats().Reordered)
}

func TestLinkReorders(t *testing.T) {
	const packets = 20_000
	share := func(reorder float64) float64 {
		l := NewLink(LinkConfig{Delay: 20 * time.Millisecond, Jitter: 40 * time.Millisecond, Reorder: reorder}, 5)
		var latest time.Duration
		overtaking := int64(0)
		for i := range packets {
			now := time.Duration(i) * time.Millisecond
			at := l.Send(now, nil)[0].At
			if at < now+20*time.Millisecond || at >= now+60*time.Millisecond {
				t.Fatalf("packet %d takes %v", i, at-now)
			}
			if at < latest {
				overtaking++
			}
			latest = max(latest, at)
		}
		require.Equal(t, overtaking, l.Stats().Reordered.Packets)
		return float64(overtaking) / packets
	}
	require.Zero(t, share(0))
	// Most exempt packets overtake, and those that are late are overtaken, each
	// by several.
	require.InDelta(t, 0.03, share(0.02), 0.01)
	require.InDelta(t, 0.3, share(0.2), 0.1)
}

// Exempt packets must not hold up those that keep the order: the others arrive
// as though the exempt ones had not been sent, in their own order.
func TestLinkReorderLeavesOthersInOrder(t *testing.T) {
	l := NewLink(LinkConfig{Jitter: 40 * time.Millisecond, Reorder: 0.5}, 11)
	twin := NewLink(LinkConfig{}, 11)
	var last time.Duration
	exempt, late := 0, 0
	for i := range 10_000 {
		now := time.Duration(i) * time.Millisecond
		at := l.Send(now, nil)[0].At
		draw := twin.draw().copies[0]
		own := now + time.Duration(below(draw.jitter, uint64(40*time.Millisecond)))
		if draw.reorder < 0.5 {
			require.Equal(t, own, at, "an exempt packet was held up")
			exempt++
			if at > last {
				late++
			}
			continue
		}
		require.Equal(t, max(own, last), at)
		last = at
	}
	requireShare(t, "exempt", int64(exempt), 10_000, 0.5)
	require.NotZero(t, late, "no exempt packet was there to be overtaken")
}

func TestLinkRate(t *testing.T) {
	l := NewLink(LinkConfig{Rate: 1_000_000, Delay: 5 * time.Millisecond}, 1)
	for i := range 10 {
		at := l.Send(0, make([]byte, 1000))[0].At
		require.Equal(t, time.Duration(i+1)*time.Millisecond+5*time.Millisecond, at)
	}
	// After an idle time there is no credit.
	require.Equal(t, 1006*time.Millisecond, l.Send(time.Second, make([]byte, 1000))[0].At)
}

func TestLinkRateDoesNotDrift(t *testing.T) {
	l := NewLink(LinkConfig{Rate: 3_000_000_000}, 1)
	for i := range 30_000 {
		want := time.Duration((i + 1) * 100 / 3) // ns: 33⅓ for each
		require.Equal(t, want, l.Send(0, make([]byte, 100))[0].At)
	}
}

func TestLinkQueue(t *testing.T) {
	l := NewLink(LinkConfig{Rate: 1000, Queue: 2000}, 1)
	packet := make([]byte, 1000) // takes one second
	send := func(now time.Duration) time.Duration {
		if d := l.Send(now, packet); len(d) > 0 {
			return d[0].At
		}
		return -1
	}
	require.Equal(t, 1*time.Second, send(0), "leaves at once")
	require.Equal(t, 2*time.Second, send(0), "waits")
	require.Equal(t, 3*time.Second, send(0), "fills the queue")
	for range 7 {
		require.EqualValues(t, -1, send(0))
	}
	require.EqualValues(t, -1, send(time.Second-1))
	require.Equal(t, 4*time.Second, send(time.Second), "the second has left the queue")
	require.EqualValues(t, -1, send(time.Second))
	require.Equal(t, LinkStats{
		Sent: Tally{13, 13000}, Delivered: Tally{4, 4000}, Overflow: Tally{9, 9000},
	}, l.Stats())

	// A packet larger than the queue passes an idle link only.
	big := make([]byte, 3000)
	require.Len(t, l.Send(10*time.Second, big), 1)
	require.Empty(t, l.Send(10*time.Second, big))
}

func TestLinkLossUsesTheRate(t *testing.T) {
	l := NewLink(LinkConfig{Rate: 1000, Loss: 1}, 1)
	require.Empty(t, l.Send(0, make([]byte, 1000)))
	l.SetConfig(LinkConfig{Rate: 1000})
	require.Equal(t, 2*time.Second, l.Send(0, make([]byte, 1000))[0].At)
}

func TestLinkMTU(t *testing.T) {
	l := NewLink(LinkConfig{MTU: 1200, Rate: 1000}, 1)
	require.Empty(t, l.Send(0, make([]byte, 1201)))
	require.Equal(t, 1200*time.Millisecond, l.Send(0, make([]byte, 1200))[0].At, "the larger one used the rate")
	require.Equal(t, Tally{1, 1201}, l.Stats().TooBig)
}

func TestLinkSameSeedSameDeliveries(t *testing.T) {
	cfg := LinkConfig{
		Delay: 10 * time.Millisecond, Jitter: 5 * time.Millisecond, Loss: 0.1, Duplicate: 0.1,
		Reorder: 0.1, Corrupt: 0.1, Rate: 1_000_000, Queue: 50_000, MTU: 1400,
	}
	run := func(seed uint64) (all [][]Delivery, stats LinkStats) {
		l := NewLink(cfg, seed)
		for i := range 2000 {
			all = append(all, l.Send(time.Duration(i)*700*time.Microsecond, number(i, 4+i%1500)))
		}
		return all, l.Stats()
	}
	one, stats := run(42)
	again, _ := run(42)
	other, _ := run(43)
	require.Equal(t, one, again)
	require.NotEqual(t, one, other)
	for _, tally := range []Tally{stats.Lost, stats.Duplicated, stats.Reordered, stats.Corrupted, stats.Overflow, stats.TooBig} {
		require.NotZero(t, tally, "a setting is not exercised: %+v", stats)
	}
	requireBalanced(t, stats)
}

// A change of one setting leaves the luck of the others as it was.
func TestLinkLuckIsPerSetting(t *testing.T) {
	little := NewLink(LinkConfig{Loss: 0.1}, 9)
	more := NewLink(LinkConfig{Loss: 0.2, Duplicate: 0.5, Jitter: time.Second, MTU: 100}, 9)
	for i := range 1000 {
		if len(little.Send(0, make([]byte, 1+i%101))) == 0 {
			assert.Empty(t, more.Send(0, make([]byte, 1+i%101)), "packet %d survives the higher loss", i)
		} else {
			more.Send(0, make([]byte, 1+i%101))
		}
	}
}

func TestLinkSetConfigKeepsOrder(t *testing.T) {
	l := NewLink(LinkConfig{Delay: time.Second, Jitter: time.Second, Reorder: 1}, 1)
	latest := time.Duration(0)
	for range 10 {
		latest = max(latest, l.Send(0, nil)[0].At)
	}
	l.SetConfig(LinkConfig{})
	require.Equal(t, latest, l.Send(0, nil)[0].At, "overtook a packet sent under the old configuration")
	require.Equal(t, 3*time.Second, l.Send(3*time.Second, nil)[0].At)
}

func TestLinkTimeDoesNotRunBackwards(t *testing.T) {
	l := NewLink(LinkConfig{Reorder: 1}, 1) // not held up by the order
	l.Send(time.Second, nil)
	require.Equal(t, time.Second, l.Send(0, nil)[0].At)
}

func BenchmarkLink(b *testing.B) {
	l := NewLink(LinkConfig{Delay: time.Millisecond, Jitter: time.Millisecond, Loss: 0.01, Rate: 1 << 40}, 1)
	packet := make([]byte, 1200)
	b.ReportAllocs()
	for i := range b.N {
		l.Send(time.Duration(i)*time.Microsecond, packet)
	}
}
