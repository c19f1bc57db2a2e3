package main

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/arqnet/kcp"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/netsim"
)

// The links suite sends bulk data over one bottleneck on the simulator: as
// much as the path takes, for 30 seconds from the start of the flow. Both
// directions have the rate, the delay and the loss of the case; what waits for
// the bottleneck, beyond the room for one bandwidth-delay product or what the
// case says, is dropped.
//
// kcp is this module as its sessions run it by default; the others with its
// name run with that congestion control. kcp-go is driven as its sessions do,
// with the windows of ours and the settings most of its users choose:
// NoDelay(1, 10, 2, 1), which has no congestion control.
//
// The small messages at a window of 65535 are left out for kcp-go: it goes over
// the whole window with every flush, and with every acknowledgement up to it, so
// that these 30 s take a processor 19 minutes. Measured once: goodput 0.585, 49 %
// retransmitted, a queue of 1.0.
//
// Goodput is what was read, as a share of what the link can carry, so packet
// headers of 24 and 28 bytes count against it. Retransmitted is the share of
// data segments put on the link that had been there before. Queue is how long
// packets waited for the bottleneck, as a share of the round-trip time.
//
// The tbf cases are a token bucket with room for two packets at the sender, as Linux's
// tbf with burst 2 or 3 KB and limit 3000. The short ones are transfers of 500 KB and 2.5 MB from their start. Dropped is how many packets
// were, for each that passed.

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
	queue   float64 // in bandwidth-delay products
	message int     // bytes; 0: a stream in full segments
	window  int     // segments; 0: the default

	// A token bucket in place of a queue of bandwidth-delay products, in bytes; 0: none.
	bucket, room int
	length       time.Duration // in place of linksTime
}

var linkCases = map[string]linkCase{
	"100mbit-50ms-loss0":   {mbit: 100, rtt: 50 * time.Millisecond, queue: 1},
	"100mbit-50ms-loss0.1": {mbit: 100, rtt: 50 * time.Millisecond, queue: 1, loss: 0.001},
	"100mbit-50ms-loss1":   {mbit: 100, rtt: 50 * time.Millisecond, queue: 1, loss: 0.01},
	"100mbit-50ms-loss5":   {mbit: 100, rtt: 50 * time.Millisecond, queue: 1, loss: 0.05},
	"100mbit-50ms-loss2":   {mbit: 100, rtt: 50 * time.Millisecond, queue: 1, loss: 0.02},
	"100mbit-50ms-loss10":  {mbit: 100, rtt: 50 * time.Millisecond, queue: 1, loss: 0.1},
	"200mbit-200ms-180B":   {mbit: 200, rtt: 200 * time.Millisecond, queue: 1, message: 180, window: 65535},

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
			return impl == kcpGo && linkCases[c].message > 0 || isStart(c) && !slices.Contains(startImpls, impl)
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
		return measureStart(startCases[name], impl, d)
	}
	c, ok := linkCases[name]
	if !ok {
		return nil, fmt.Errorf("no case %q", name)
	}
	length := cmp.Or(c.length, linksTime)
	if d < quickRun {
		length = linksQuick
	}
	p := newPath(c, 1)
	ends, err := linkImpl(impl, c)
	if err != nil {
		return nil, err
	}
	err = frozen(func() error {
		var start time.Duration
		if c.bucket > 0 {
			start = time.Millisecond // a state machine does not see what is lost of its time 0
		}
		if _, err := p.flow(ends, c, start); err != nil {
			return err
		}
		return p.runUntil(length)
	})
	if err != nil {
		return nil, err
	}
	f := p.flows[0]
	figures := figures{
		metricGoodput:       float64(f.received) / (float64(p.rate) * length.Seconds()),
		metricRetransmitted: f.retransmitted(),
	}
	if queue := p.forward.Stats(); c.bucket > 0 {
		figures[metricDropped] = float64(queue.Overflow.Packets) / float64(max(queue.Delivered.Packets, 1))
	} else {
		figures[metricQueue] = p.forward.QueueDelays().Quantile(0.95).Seconds() / c.rtt.Seconds()
	}
	return figures, nil
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

// path is a bottleneck and the flows over it.
type path struct {
	sim           *sim
	forward, back *simLink
	rate          int64 // bytes a second
	flows         []*linkFlow
}

func newPath(c linkCase, seed uint64) *path {
	p := &path{sim: new(sim), rate: c.mbit * 1e6 / 8}
	cfg := netsim.LinkConfig{
		Delay: c.rtt / 2, Loss: c.loss, Rate: p.rate,
		Queue: int(float64(p.rate) * c.rtt.Seconds() * c.queue),
	}
	if c.bucket > 0 {
		cfg.Bucket, cfg.Queue = c.bucket, c.room
	}
	p.forward, p.back = newSimLink(cfg, 2*seed), newSimLink(cfg, 2*seed+1)
	if c.bucket > 0 { // it is at the sender
		p.back = newSimLink(netsim.LinkConfig{Delay: cfg.Delay}, 2*seed+1)
	}
	p.forward.tap = func(e *simEnd, packet []byte) {
		for _, f := range p.flows {
			if f.a == e {
				f.count(packet)
			}
		}
	}
	return p
}

// runUntil lets the time pass until then.
func (p *path) runUntil(then time.Duration) error {
	over := false
	p.sim.at(then, func() { over = true })
	if err := p.sim.run(then+time.Second, func() bool { return over }); err != nil {
		return err
	}
	for _, f := range p.flows {
		if f.err != nil {
			return f.err
		}
	}
	return nil
}

// linkFlow sends as much as it can.
type linkFlow struct {
	c              linkCase
	a, b           *simEnd
	written        int64
	offered        int64 // what the application has to send so far; bulk: no limit
	received       int64
	lastRead       time.Duration
	segments, sent int64 // data segments, and all transmissions of them
	next           uint32
	buf            []byte
	err            error
}

// pattern is what flows send, over and over.
var pattern = func() []byte {
	b := make([]byte, 1<<20)
	for i := range b {
		b[i] = byte(i % 251)
	}
	return b[:len(b)-len(b)%251]
}()

// flow adds a flow that begins at a time.
func (p *path) flow(impl simImpl, c linkCase, start time.Duration) (*linkFlow, error) {
	f := &linkFlow{c: c, buf: make([]byte, 1<<16)}
	var err error
	if f.a, f.b, err = p.sim.pair(impl, p.forward, p.back); err != nil {
		return nil, err
	}
	p.flows = append(p.flows, f)
	f.b.readable = f.read
	f.offered = 1 << 62
	p.sim.at(start, func() {
		f.a.readable = f.fill
		f.fill()
	})
	return f, nil
}

// fill writes until the write buffer of the session is full.
func (f *linkFlow) fill() {
	size := f.c.message
	if size == 0 {
		size = coreMTU - 24
	}
	limit := f.limit(size)
	for f.a.backlog() < limit && f.written < f.offered && f.a.sim.err == nil {
		at := int(f.written % int64(len(pattern)))
		n := min(size, len(pattern)-at)
		f.a.Write(pattern[at : at+n])
		f.written += int64(n)
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
	for {
		n := f.b.Read(f.buf)
		if n == 0 {
			return
		}
		for b := f.buf[:n]; len(b) > 0; {
			at := int(f.received % int64(len(pattern)))
			m := min(len(b), len(pattern)-at)
			if !bytes.Equal(b[:m], pattern[at:at+m]) {
				f.err = errors.Join(f.err, fmt.Errorf("other bytes than were sent, after %d", f.received))
				return
			}
			f.received += int64(m)
			b = b[m:]
		}
		f.lastRead = f.b.sim.now
	}
}

// count looks at a packet on its way.
func (f *linkFlow) count(packet []byte) {
	const header, cmdPush = 24, 81
	for len(packet) >= header {
		size := binary.LittleEndian.Uint32(packet[20:])
		if packet[4] == cmdPush {
			f.sent++
			if sn := binary.LittleEndian.Uint32(packet[12:]); sn == f.next {
				f.next++
				f.segments++
			}
		}
		packet = packet[header+size:]
	}
}

// retransmitted returns the share of transmissions that were not the first of
// their segment.
func (f *linkFlow) retransmitted() float64 {
	if f.sent == 0 {
		return 0
	}
	return float64(f.sent-f.segments) / float64(f.sent)
}
