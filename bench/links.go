package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/arqnet/kcp"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/netsim"
)

// The links suite sends bulk data over one bottleneck on the simulator: as
// much as the path takes, for 30 seconds from the start of the flow. Both
// directions have the rate, the delay and the loss of the case; what waits for
// the bottleneck, beyond the room for one bandwidth-delay product, is dropped.
//
// kcp is this module as its sessions run it by default; the others with its
// name run with that congestion control. kcp-go is driven as its sessions do,
// with the windows of ours and the settings most of its users choose:
// NoDelay(1, 10, 2, 1), which has no congestion control. The small messages at a
// window of 65535 are left out for kcp-go, as they take it many minutes.
//
// Goodput is what was read, as a share of what the link can carry, so packet
// headers of 24 and 28 bytes count against it. Retransmitted is the share of
// data segments put on the link that had been there before. Queue is how long
// packets waited for the bottleneck, as a share of the round-trip time.
//
// The tbf cases are a token bucket with room for two packets at the sender, as Linux's
// tbf with burst 2 or 3 KB and limit 3000. The short ones are transfers of 500 KB and
// 2.5 MB from their start. Dropped is how many packets were, for each that passed.
//
// The start cases send startBytes over a path without a bottleneck that loses much: 30
// to 40 ms each way. Only the windows limit the rate. The figures are over startSeeds
// runs: how long a transfer takes, from the first Write until the last byte is read. A
// start-up that the losses end too early shows in the tail.

const (
	metricRetransmitted = "retransmitted"
	metricQueue         = "queue_p95"
	metricDropped       = "dropped"
)

const (
	kcpReference = "kcp-reference"
	kcpCubic     = "kcp-cubic"
)

// linkCase is what a case's name stands for.
type linkCase struct {
	mbit    int64
	rtt     time.Duration
	loss    float64
	message int // bytes; 0: a stream in full segments
	window  int // segments; 0: the default

	// A token bucket in place of a queue of bandwidth-delay products, in bytes; 0: none.
	bucket, room int
	length       time.Duration // in place of linksTime
}

var linkCases = map[string]linkCase{
	"100mbit-50ms-loss0":   {mbit: 100, rtt: 50 * time.Millisecond},
	"100mbit-50ms-loss0.1": {mbit: 100, rtt: 50 * time.Millisecond, loss: 0.001},
	"100mbit-50ms-loss1":   {mbit: 100, rtt: 50 * time.Millisecond, loss: 0.01},
	"100mbit-50ms-loss5":   {mbit: 100, rtt: 50 * time.Millisecond, loss: 0.05},
	"100mbit-50ms-loss2":   {mbit: 100, rtt: 50 * time.Millisecond, loss: 0.02},
	"100mbit-50ms-loss10":  {mbit: 100, rtt: 50 * time.Millisecond, loss: 0.1},
	"200mbit-200ms-180B":   {mbit: 200, rtt: 200 * time.Millisecond, message: 180, window: 65535},

	"tbf-1mbit":      {mbit: 1, rtt: shortRTT, bucket: 2000, room: 3000, length: 4 * time.Second},
	"tbf-1mbit-30s":  {mbit: 1, rtt: shortRTT, bucket: 2000, room: 3000},
	"tbf-20mbit":     {mbit: 20, rtt: shortRTT, bucket: 3000, room: 3000, length: time.Second},
	"tbf-20mbit-30s": {mbit: 20, rtt: shortRTT, bucket: 3000, room: 3000},
}

// shortRTT is the round-trip time of hosts on one switch.
const shortRTT = 100 * time.Microsecond

const (
	linksTime  = 30 * time.Second
	linksQuick = 300 * time.Millisecond // in a trial
)

func init() {
	s := &suite{
		name:  "links",
		about: "bulk data through a bottleneck for 30 s from its start, in virtual time",
		cases: []string{
			"100mbit-50ms-loss0", "100mbit-50ms-loss0.1", "100mbit-50ms-loss1", "100mbit-50ms-loss5", "200mbit-200ms-180B",
			"100mbit-50ms-loss2", "100mbit-50ms-loss10",
			"start-loss10", "start-loss20",
			"tbf-1mbit", "tbf-1mbit-30s", "tbf-20mbit", "tbf-20mbit-30s",
		},
		impls:   []string{ours, kcpGo, kcpReference, kcpCubic},
		metrics: []metric{{metricGoodput, "share"}, {metricRetransmitted, "share"}, {metricQueue, "share of RTT"}, {metricDropped, "of what passed"}, {metricP50, "ms"}, {metricP99, "ms"}},
		measure: measureLinks,
		lacks: func(c, impl string) bool {
			return impl == kcpGo && linkCases[c].message > 0 || isStart(c) && impl != ours && impl != kcpGo
		},
		virtual: true,
	}
	goodput := map[string]float64{
		"100mbit-50ms-loss0": 0.93, "100mbit-50ms-loss0.1": 0.93, "100mbit-50ms-loss1": 0.91, "100mbit-50ms-loss5": 0.88,
		"200mbit-200ms-180B": 0.7,
	}
	for _, c := range s.cases {
		if goodput[c] == 0 {
			continue
		}
		s.goals = append(s.goals, goal{c: c, impl: ours, metric: metricGoodput, min: goodput[c]})
		if linkCases[c].message == 0 {
			s.goals = append(s.goals,
				goal{c: c, impl: ours, metric: metricRetransmitted, max: linkCases[c].loss + 0.02},
				goal{c: c, impl: ours, metric: metricQueue, max: 0.5})
		}
	}
	s.goals = append(s.goals,
		goal{c: "tbf-1mbit", impl: ours, metric: metricDropped, max: 0.3},
		goal{c: "tbf-20mbit", impl: ours, metric: metricDropped, max: 0.3},
		goal{c: "start-loss10", impl: ours, metric: metricP99, max: 1.5 * 1262},
		goal{c: "start-loss20", impl: ours, metric: metricP99, max: 1.5 * 1557})
	register(s)
}

// measureLinks runs one case. Virtual time costs what it costs: d only tells a
// trial from the whole.
func measureLinks(name, impl string, d time.Duration) (figures, error) {
	if isStart(name) {
		return measureStart(name, impl, d)
	}
	c := linkCases[name]
	ends, err := linkImpl(impl, c)
	if err != nil {
		return nil, err
	}
	length, rate := cmp.Or(c.length, linksTime), c.mbit*1e6/8
	if d < quickRun {
		length = linksQuick
	}
	there := netsim.LinkConfig{
		Delay: c.rtt / 2, Loss: c.loss, Rate: rate, Queue: int(float64(rate) * c.rtt.Seconds()),
	}
	back, start := there, time.Duration(0)
	if c.bucket > 0 { // it is at the sender
		there.Bucket, there.Queue = c.bucket, c.room
		back = netsim.LinkConfig{Delay: c.rtt / 2}
		start = time.Millisecond // a state machine does not see what is lost of its time 0
	}
	ends, counts := counted(ends)
	f := &linkFlow{c: c, offered: 1 << 62}
	err = frozen(func() error {
		if err := f.open(ends, there, back, 1, start); err != nil {
			return err
		}
		over := false
		f.sim.at(length, func() { over = true })
		return errors.Join(f.sim.run(length+time.Second, func() bool { return over }), f.err)
	})
	if err != nil {
		return nil, err
	}
	segments, again := counts()
	figures := figures{
		metricGoodput:       float64(f.received) / (float64(rate) * length.Seconds()),
		metricRetransmitted: again / max(segments, 1),
	}
	if queue := f.there.Stats(); c.bucket > 0 {
		figures[metricDropped] = float64(queue.Overflow.Packets) / float64(max(queue.Delivered.Packets, 1))
	} else {
		figures[metricQueue] = f.there.QueueDelays().Quantile(0.95).Seconds() / c.rtt.Seconds()
	}
	return figures, nil
}

const (
	startBytes = 8 << 20
	startSeeds = 200
)

func isStart(name string) bool { return strings.HasPrefix(name, "start-loss") }

// measureStart runs one start case with all seeds, or two in a trial.
func measureStart(name, impl string, d time.Duration) (figures, error) {
	loss, err := strconv.Atoi(strings.TrimPrefix(name, "start-loss"))
	if err != nil {
		return nil, err
	}
	ends, err := linkImpl(impl, linkCase{})
	if err != nil {
		return nil, err
	}
	link := netsim.LinkConfig{Delay: 30 * time.Millisecond, Jitter: 10 * time.Millisecond, Loss: float64(loss) / 100}
	times := make([]float64, startSeeds)
	if d < quickRun {
		times = times[:2]
	}
	err = frozen(func() error {
		for seed := range times {
			f := &linkFlow{offered: startBytes}
			if err := f.open(ends, link, link, uint64(seed), 0); err != nil {
				return err
			}
			err := f.sim.run(time.Hour, func() bool { return f.received >= startBytes || f.err != nil })
			if err = errors.Join(err, f.err); err != nil {
				return fmt.Errorf("seed %d: %w", seed, err)
			}
			times[seed] = f.sim.now.Seconds() * 1000
		}
		return nil
	})
	slices.Sort(times)
	return figures{metricP50: times[len(times)/2], metricP99: times[(len(times)-1)*99/100]}, err
}

// linkImpl returns an implementation with the settings of this suite.
func linkImpl(impl string, c linkCase) (simImpl, error) {
	config := kcp.Config{MessageMode: c.message > 0, SendWindow: c.window, ReceiveWindow: c.window}
	switch impl {
	case ours:
	case kcpReference:
		config.CongestionControl = congestion.NewReference
	case kcpCubic:
		config.CongestionControl = congestion.NewCubic
	case kcpGo:
		return newKCPGoImpl(1, 10, 2, 1, c.windowOrDefault(), 0), nil
	default:
		return nil, fmt.Errorf("no implementation %q", impl)
	}
	return newSessionImpl(config), nil
}

func (c linkCase) windowOrDefault() int {
	if c.window > 0 {
		return c.window
	}
	return 2048
}

// linkFlow sends as much as it can over a path of its own.
type linkFlow struct {
	c           linkCase
	sim         sim
	there, back *simLink
	a, b        *simEnd
	rope        *rope
	written     int64
	offered     int64 // what the application has to send
	received    int64
	buf         []byte
	err         error
}

// open opens the path, and begins at a time.
func (f *linkFlow) open(impl simImpl, there, back netsim.LinkConfig, seed uint64, start time.Duration) (err error) {
	f.rope, f.buf = newRope(), make([]byte, readSize)
	f.there, f.back = newSimLink(there, 2*seed), newSimLink(back, 2*seed+1)
	if f.a, f.b, err = f.sim.pair(impl, f.there, f.back); err != nil {
		return err
	}
	f.b.readable = f.read
	f.sim.at(start, func() {
		f.a.readable = f.fill
		f.fill()
	})
	return nil
}

// fill writes until the write buffer of the session is full.
func (f *linkFlow) fill() {
	size := cmp.Or(f.c.message, coreMTU-24)
	limit := f.limit(size)
	for f.a.backlog() < limit && f.written < f.offered && f.sim.err == nil {
		f.a.Write(f.rope.at(uint64(f.written), size))
		f.written += int64(size)
	}
}

// limit returns how many segments of size the sender may hold: as many as the
// default write buffer, or what kcp-go's Write takes.
func (f *linkFlow) limit(size int) int {
	if _, ok := f.a.driver.(*kcpGoSessionEnd); ok {
		return f.c.windowOrDefault()
	}
	if f.c.window > 0 {
		return 2 * f.c.window
	}
	return 4 << 20 / (size + 64)
}

// read takes what has arrived and compares it with what was sent.
func (f *linkFlow) read() {
	for n := f.b.Read(f.buf); n > 0 && f.err == nil; n = f.b.Read(f.buf) {
		f.err = f.rope.check(uint64(f.received), f.buf[:n])
		f.received += int64(n)
	}
}
