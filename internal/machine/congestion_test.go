package machine

import (
	"container/heap"
	"slices"
	"testing"
	"time"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// course is a bulk transfer from a to b over a bottleneck, in virtual time and
// with the extensions of sessions.
type course struct {
	t             *testing.T
	now           time.Duration
	a, b          *KCP
	forward, back *netsim.Link
	cfg           netsim.LinkConfig
	events        courseEvents
	order         int
	supply        int64 // bytes that a may still send
	received      int64
	waits         []time.Duration // in the queue
	buf           [1 << 16]byte
}

type courseEvent struct {
	at     time.Duration
	order  int
	to     *KCP
	packet []byte
}

type courseEvents []courseEvent

func (h courseEvents) Len() int { return len(h) }
func (h courseEvents) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}
func (h courseEvents) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *courseEvents) Push(x any)   { *h = append(*h, x.(courseEvent)) }
func (h *courseEvents) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// newCourse has a path of rate bytes a second and a round-trip time, with a
// queue of so many bandwidth-delay products.
func newCourse(t *testing.T, cc congestion.Control, rate int64, rtt time.Duration, queue, loss float64) *course {
	simulated(t)
	sequential(t)
	c := &course{t: t, supply: 1 << 60}
	c.cfg = netsim.LinkConfig{
		Delay: rtt / 2, Rate: rate, Loss: loss, Queue: int(float64(rate) * rtt.Seconds() * queue),
	}
	c.forward, c.back = netsim.NewLink(c.cfg, 1), netsim.NewLink(c.cfg, 2)
	c.a = New(1, func(p []byte) { c.put(c.forward, c.b, p) })
	c.b = New(1, func(p []byte) { c.put(c.back, c.a, p) })
	asSession(c.a, cc)
	asSession(c.b, cc)
	c.a.SetClockMicros(0)
	c.b.SetClockMicros(0)
	return c
}

func (c *course) put(l *netsim.Link, to *KCP, packet []byte) {
	for _, d := range l.Send(c.now, packet) {
		if to == c.b {
			own := time.Duration(int64(len(packet)) * int64(time.Second) / c.cfg.Rate)
			c.waits = append(c.waits, d.At-c.now-c.cfg.Delay-own)
		}
		c.order++
		heap.Push(&c.events, courseEvent{d.At, c.order, to, d.Data})
	}
}

// run lets time pass until then, and returns the goodput of it in bytes a
// second.
func (c *course) run(until time.Duration) float64 {
	start, before := c.now, c.received
	c.waits = nil
	for {
		for c.supply > 0 && c.a.WaitSend() < 3000 {
			n := int(min(c.supply, int64(c.a.cfg.mss)))
			_, err := c.a.Send(c.buf[:n])
			require.NoError(c.t, err)
			c.supply -= int64(n)
		}
		for _, k := range []*KCP{c.a, c.b} {
			k.SetClockMicros(uint64(c.now.Microseconds()))
			if at, ok := k.NextFlush(); ok && !Seq(at).After(k.clock.now) {
				k.Flush()
			}
		}
		next := until
		for _, k := range []*KCP{c.a, c.b} {
			if at, ok := k.NextFlush(); ok {
				wait := time.Duration(max(1, Seq(at).Diff(k.clock.now))) * time.Millisecond
				next = min(next, c.now.Truncate(time.Millisecond)+wait)
			}
		}
		if len(c.events) > 0 {
			next = min(next, c.events[0].at)
		}
		c.now = next
		if c.now >= until {
			return float64(c.received-before) / (until - start).Seconds()
		}
		for len(c.events) > 0 && c.events[0].at <= c.now {
			ev := heap.Pop(&c.events).(courseEvent)
			ev.to.SetClockMicros(uint64(c.now.Microseconds()))
			require.NoError(c.t, ev.to.Input(ev.packet))
			c.received += int64(c.b.RecvBytes(c.buf[:]))
		}
	}
}

// queue returns the time that 95 % of the packets of the last run have waited
// at most.
func (c *course) queue() time.Duration {
	slices.Sort(c.waits)
	return c.waits[len(c.waits)*95/100]
}

// change changes both directions.
func (c *course) change(edit func(*netsim.LinkConfig)) {
	edit(&c.cfg)
	c.forward.SetConfig(c.cfg)
	c.back.SetConfig(c.cfg)
}

// resent returns the share of the sender's transmissions that were
// retransmissions.
func (c *course) resent() float64 {
	n := c.a.counters
	again := float64(n.FastRetransmits + n.TimeoutRetransmits)
	return again / (again + float64(n.SegmentsSent))
}

const courseRate = 2_500_000 // 20 Mbit/s

// What a controller makes of paths of 20 Mbit/s and 40 ms. The figures of
// whole transfers are bench's; a controller that does not do its work is far
// from these.
func TestControllersOnPaths(t *testing.T) {
	t.Parallel()
	long(t)
	const rtt = 40 * time.Millisecond
	for _, test := range []struct {
		name        string
		control     func() congestion.Control
		queue, loss float64
		goodput     float64 // share, at least
		wait        float64 // round trips in the queue, at most
		resent      float64 // share, at most
	}{
		{"bbr", congestion.NewBBR, 1, 0, 0.94, 0.5, 0.01},
		{"bbr, loss", congestion.NewBBR, 1, 0.05, 0.88, 0.7, 0.07},
		{"bbr, much loss", congestion.NewBBR, 1, 0.1, 0.8, 0.8, 0.13},
		{"bbr, shallow queue", congestion.NewBBR, 0.2, 0, 0.9, 0.2, 0.03},
		{"bbr, deep queue", congestion.NewBBR, 8, 0, 0.94, 0.5, 0.01},
		{"cubic", congestion.NewCubic, 1, 0, 0.94, 1, 0.03},
		{"cubic, shallow queue", congestion.NewCubic, 0.2, 0, 0.75, 0.2, 0.03},
		{"cubic, deep queue", congestion.NewCubic, 8, 0, 0.94, 8, 0.02},
	} {
		c := newCourse(t, test.control(), courseRate, rtt, test.queue, test.loss)
		c.run(time.Second)
		goodput := c.run(6 * time.Second)
		require.Greater(t, goodput, test.goodput*courseRate, test.name)
		require.LessOrEqual(t, float64(c.queue()), test.wait*float64(rtt)*1.01, "%s: queue", test.name)
		require.LessOrEqual(t, c.resent(), test.resent, "%s: resent", test.name)
	}
}

// Packets that overtake each other are not declared lost, once that has been
// seen, whether a few of them are exempt from the order or there is none.
func TestReorderedPath(t *testing.T) {
	t.Parallel()
	long(t)
	const rate = 6_250_000 // 50 Mbit/s
	for _, rtt := range []time.Duration{40 * time.Millisecond, 80 * time.Millisecond} {
		for _, share := range []float64{0.02, 1} {
			seeds, sum := fewer(4), 0.0
			for seed := range seeds {
				c := newCourse(t, congestion.NewBBR(), rate, rtt, 1, 0)
				c.cfg.Jitter, c.cfg.Reorder = 10*time.Millisecond, share
				c.forward, c.back = netsim.NewLink(c.cfg, 2*seed), netsim.NewLink(c.cfg, 2*seed+1)
				c.run(2 * time.Second)
				before := c.a.counters
				goodput := c.run(8 * time.Second)
				again := c.a.counters.Retransmits() - before.Retransmits()
				resent := float64(again) / float64(c.a.counters.SegmentsSent-before.SegmentsSent)
				sum += resent
				require.Less(t, resent, 0.008, "%v, %v, seed %d", rtt, share, seed)
				require.Greater(t, goodput, 0.85*rate, "%v, %v, seed %d", rtt, share, seed)
			}
			require.Less(t, sum/float64(seeds), 0.004, "%v, %v", rtt, share)
		}
	}
}

// A path that becomes slower, or faster, is found out in some seconds, without
// a standing queue and without a flood.
func TestBBRFollowsThePath(t *testing.T) {
	t.Parallel()
	long(t)
	c := newCourse(t, congestion.NewBBR(), courseRate, 40*time.Millisecond, 2, 0)
	c.run(3 * time.Second)
	c.change(func(l *netsim.LinkConfig) { l.Rate /= 4 })
	c.run(7 * time.Second)
	require.Greater(t, c.run(10*time.Second), 0.9*courseRate/4)
	require.Less(t, c.queue(), 60*time.Millisecond)
	c.change(func(l *netsim.LinkConfig) { l.Rate *= 4 })
	c.run(16 * time.Second)
	require.Greater(t, c.run(18*time.Second), 0.85*courseRate)
	c.change(func(l *netsim.LinkConfig) { l.Delay *= 3 })
	c.run(32 * time.Second) // the least round-trip time is forgotten after ten
	require.Greater(t, c.run(35*time.Second), 0.85*courseRate)
}

// recoveries is no control that writes down what it is told of recoveries.
type recoveries struct {
	congestion.Control
	told []bool
}

func (c *recoveries) OnRecovered(_ *congestion.State, spurious bool) {
	c.told = append(c.told, spurious)
}

// The controller hears of the end of a recovery, and whether it was for nothing:
// only where every segment has come with its first transmission.
func TestOnRecovered(t *testing.T) {
	for _, test := range []struct {
		name string
		late uint32 // after the repair
		acks [][]byte
		want []bool
	}{
		{"first", 5, [][]byte{ack(1, 1080, 1)}, []bool{true}},
		{"second", 80, [][]byte{ack(1, 1160, 1)}, []bool{false}},
		{"una, too soon for the second", 5, [][]byte{segment(wire.CmdWins, 0, 0, 0, 3, "")}, []bool{true}},
		{"una, either", 85, [][]byte{segment(wire.CmdWins, 0, 0, 0, 3, "")}, []bool{false}},
		{"una, and the first", 85, [][]byte{ack(1, 1080, 3)}, []bool{true}},
		{"una, and the second", 85, [][]byte{ack(1, 1160, 3)}, []bool{false}},
		{"first of three", 1385, [][]byte{ack(1, 1080, 1), ack(3, 1080, 1)}, []bool{true}},
		{"una, and the first of three", 1385, [][]byte{ack(1, 1080, 4)}, []bool{true}},
		{"una, and the second of three", 1385, [][]byte{ack(1, 1160, 4)}, []bool{false}},
		{"nothing of it", 5, [][]byte{ack(3, 1080, 1)}, nil},
	} {
		cc := &recoveries{Control: congestion.NewNone()}
		h := recoveryHarness(t, 1, Extensions{EarlyRetransmit: true, SendOrder: true})
		require.NoError(t, h.k.SetMinRTO(1000))
		h.k.SetCongestionControl(cc)
		h.later(80)
		h.input(ack(2, 1080, 1))
		h.advance(0)
		h.want(`push 1 frg=0 "a"`)
		if test.late > 1300 { // than the time-out
			h.later(1300)
			h.advance(0)
			h.want(`push 1 frg=0 "a"`, `push 3 frg=0 "c"`)
			test.late -= 1300
		}
		h.later(test.late)
		h.input(test.acks...)
		require.Equal(t, test.want, cc.told, test.name)
	}
}

// A needless repair leaves no trace in the window; a needed one does.
func TestControllersUndo(t *testing.T) {
	for name, control := range map[string]congestion.Control{"cubic": congestion.NewCubic(), "reference": congestion.NewReference()} {
		for _, spurious := range []bool{false, true} {
			c := newCourse(t, control, courseRate, 40*time.Millisecond, 1, 0)
			c.run(300 * time.Millisecond)
			s := c.a.congestionState()
			s.LostSent = s.Micros
			before := control.Window()
			control.OnFastRetransmit(s)
			s.LostSent++
			control.OnTimeout(s)
			require.Less(t, control.Window(), before, name)
			control.(congestion.Undoer).OnRecovered(s, spurious)
			require.Equal(t, spurious, control.Window() == before, name)
			control.OnTick(s)
			control.(congestion.Undoer).OnRecovered(s, true) // nothing is left to undo
			require.Equal(t, spurious, control.Window() == before, name)
		}
	}
}
