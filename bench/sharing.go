package main

import (
	"fmt"
	"time"
)

// The sharing suite has two bulk flows over one bottleneck on the simulator.
// The second begins a while after the first, and ten seconds later it is
// measured for twenty how much each gets: ratio is the first one's share to
// the second's. Against CUBIC, the implementation is one of the two and
// kcp-cubic the other.
//
// The outage suite cuts the path in the middle of a bulk transfer, both ways.
// Recovery is the time from the end of the outage until the receiver reads
// again.

const (
	metricRatio    = "ratio"
	metricRecovery = "recovery"
)

// sharingCase is what a case's name stands for.
type sharingCase struct {
	linkCase
	first, second string // implementations; empty: the one that is measured
	start         time.Duration
}

var sharingLink = linkCase{mbit: 100, rtt: 50 * time.Millisecond, queue: 1}

var sharingCases = map[string]sharingCase{
	"two-flows":       {linkCase: sharingLink, start: 3 * time.Second},
	"two-flows-loss1": {linkCase: withLoss(sharingLink, 0.01), start: 3 * time.Second},
	"two-flows-deep":  {linkCase: withQueue(sharingLink, 10), start: 3 * time.Second},
	"before-cubic":    {linkCase: sharingLink, second: kcpCubic, start: 3 * time.Second},
	"after-cubic":     {linkCase: sharingLink, first: kcpCubic, start: 3 * time.Second},
	"with-cubic-2bdp": {linkCase: withQueue(sharingLink, 2), second: kcpCubic},
}

func withLoss(c linkCase, loss float64) linkCase {
	c.loss = loss
	return c
}

func withQueue(c linkCase, queue float64) linkCase {
	c.queue = queue
	return c
}

const (
	sharingSettle = 10 * time.Second
	sharingTime   = 20 * time.Second

	outageStart = 5 * time.Second
	outageTime  = 10 * time.Second
	outageWait  = 20 * time.Second // for the recovery
)

// outageCases are round-trip times.
var outageCases = map[string]time.Duration{
	"10s-50ms":  50 * time.Millisecond,
	"10s-200ms": 200 * time.Millisecond,
}

func init() {
	register(&suite{
		name:    "sharing",
		about:   "two bulk flows on a link of 100 Mbit/s, RTT 50 ms: the rate of the first divided by the second's, from 10 s on, in virtual time",
		cases:   []string{"two-flows", "two-flows-loss1", "two-flows-deep", "before-cubic", "after-cubic", "with-cubic-2bdp"},
		impls:   []string{ours, kcpGo, kcpReference, kcpCubic, kcpBBR},
		metrics: []metric{{metricRatio, "of rates"}},
		measure: measureSharing,
		exact:   true,
		thresholds: []threshold{
			{c: "two-flows", impl: ours, metric: metricRatio, min: 40. / 60, max: 60. / 40},
			{c: "two-flows-loss1", impl: ours, metric: metricRatio, min: 40. / 60, max: 60. / 40},
			{c: "two-flows-deep", impl: ours, metric: metricRatio, min: 40. / 60, max: 60. / 40},
			{c: "before-cubic", impl: ours, metric: metricRatio, min: 0.33, max: 3},
			{c: "after-cubic", impl: ours, metric: metricRatio, min: 0.33, max: 3},
			{c: "with-cubic-2bdp", impl: ours, metric: metricRatio, min: 0.33, max: 3},
		},
	})
	register(&suite{
		name:    "outage",
		about:   "10 s without the path in the middle of a bulk transfer at 100 Mbit/s, in virtual time",
		cases:   []string{"10s-50ms", "10s-200ms"},
		impls:   []string{ours, kcpGo, kcpReference, kcpCubic, kcpBBR},
		metrics: []metric{{metricRecovery, "ms"}},
		measure: measureOutage,
		exact:   true,
		thresholds: []threshold{
			{c: "10s-50ms", impl: ours, metric: metricRecovery, max: 2*50 + 200},
			{c: "10s-200ms", impl: ours, metric: metricRecovery, max: 2*200 + 200},
		},
	})
}

func measureSharing(name, impl string, d time.Duration) (figures, error) {
	c, ok := sharingCases[name]
	if !ok {
		return nil, fmt.Errorf("no case %q", name)
	}
	settle, length := sharingSettle, sharingTime
	if d < quickRun {
		settle, length, c.start = 0, linksQuick, 0
	}
	names := []string{c.first, c.second}
	var ends []simImpl
	for i := range names {
		if names[i] == "" {
			names[i] = impl
		}
		end, err := linkImpl(names[i], c.linkCase)
		if err != nil {
			return nil, err
		}
		ends = append(ends, end)
	}
	p := newPath(c.linkCase, 1)
	var before, after [2]int64
	err := frozen(func() error {
		for i, end := range ends {
			if _, err := p.flow(end, c.linkCase, time.Duration(i)*c.start); err != nil {
				return err
			}
		}
		if err := p.runUntil(c.start + settle); err != nil {
			return err
		}
		before = [2]int64{p.flows[0].received, p.flows[1].received}
		err := p.runUntil(c.start + settle + length)
		after = [2]int64{p.flows[0].received, p.flows[1].received}
		return err
	})
	if err != nil {
		return nil, err
	}
	first, second := float64(after[0]-before[0]), float64(after[1]-before[1])
	ratio := first / max(second, 1)
	if c.first != "" {
		ratio = second / max(first, 1) // the rate of the implementation in question
	}
	return figures{metricRatio: ratio}, nil
}

func measureOutage(name, impl string, d time.Duration) (figures, error) {
	rtt, ok := outageCases[name]
	if !ok {
		return nil, fmt.Errorf("no case %q", name)
	}
	c := linkCase{mbit: 100, rtt: rtt, queue: 1}
	start, length := outageStart, outageTime
	if d < quickRun {
		start, length = linksQuick, 100*time.Millisecond
	}
	ends, err := linkImpl(impl, c)
	if err != nil {
		return nil, err
	}
	p := newPath(c, 1)
	end := start + length
	recovery := outageWait
	err = frozen(func() error {
		f, err := p.flow(ends, c, 0)
		if err != nil {
			return err
		}
		p.sim.at(start, func() { p.setLoss(1) })
		p.sim.at(end, func() { p.setLoss(0) })
		if err := p.runUntil(end); err != nil {
			return err
		}
		received := f.received
		if err := p.sim.run(end+outageWait, func() bool { return f.received > received }); err == nil {
			recovery = p.sim.now - end
		}
		return p.sim.err
	})
	return figures{metricRecovery: recovery.Seconds() * 1000}, err
}
