package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/arqnet/kcp/netsim"
)

// The start cases of the links suite send startBytes from the start of a flow
// over a path without a bottleneck that loses much: 30 to 40 ms each way, and
// the loss that the name says. Only the windows limit the rate. The figures are
// over startSeeds runs: how long a transfer takes, from the first Write until
// the last byte is read. A start-up that the losses end too early shows in the
// tail.

const (
	startBytes = 8 << 20
	startSeeds = 200
	startLimit = 10 * time.Minute // of virtual time in one run
)

var startLink = netsim.LinkConfig{Delay: 30 * time.Millisecond, Jitter: 10 * time.Millisecond}

// startCases are shares of loss.
var startCases = map[string]float64{
	"start-loss10": 0.1,
	"start-loss20": 0.2,
}

// startImpls are the implementations that the start cases measure.
var startImpls = []string{ours, kcpGo}

func isStart(name string) bool { return startCases[name] > 0 }

// measureStart runs one start case with all seeds, or two in a trial.
func measureStart(loss float64, impl string, d time.Duration) (figures, error) {
	seeds := startSeeds
	if d < quickRun {
		seeds = 2
	}
	times := make([]float64, seeds)
	err := frozen(func() error {
		for seed := range times {
			took, err := startTime(loss, impl, uint64(seed))
			if err != nil {
				return fmt.Errorf("seed %d: %w", seed, err)
			}
			times[seed] = took.Seconds() * 1000
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(times)
	return figures{metricP50: times[seeds/2], metricP99: times[(seeds-1)*99/100]}, nil
}

// startTime returns how long startBytes take.
func startTime(loss float64, impl string, seed uint64) (time.Duration, error) {
	ends, err := linkImpl(impl, linkCase{})
	if err != nil {
		return 0, err
	}
	cfg := startLink
	cfg.Loss = loss
	p := &path{sim: new(sim), forward: newSimLink(cfg, 2*seed), back: newSimLink(cfg, 2*seed+1)}
	f, err := p.flow(ends, linkCase{}, 0)
	if err != nil {
		return 0, err
	}
	f.offered = startBytes
	err = p.sim.run(startLimit, func() bool { return f.received >= startBytes || f.err != nil })
	if err == nil {
		err = f.err
	}
	return f.lastRead, err
}
