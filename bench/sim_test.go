package main

import (
	"slices"
	"testing"
	"time"

	"github.com/arqnet/kcp"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/netsim"
)

// TestSimRepeats wants the same figures from the same seeds, and others from
// others.
func TestSimRepeats(t *testing.T) {
	for _, impl := range []string{ours, kcpGo, referenceFast} {
		var runs [3]latencyResult
		for i := range runs {
			var err error
			if runs[i], err = runLatency("burst-60hz", impl, 2+i/2); err != nil {
				t.Fatal(impl, err)
			}
		}
		if !slices.Equal(runs[0].echoes, runs[1].echoes) || !slices.Equal(runs[0].bytes, runs[1].bytes) {
			t.Errorf("%s: two runs with the same seed differ", impl)
		}
		if slices.Equal(runs[0].bytes, runs[2].bytes[1:]) {
			t.Errorf("%s: two runs with different seeds are the same", impl)
		}
	}
}

// TestSimFloor compares the simulator with arithmetic: on a path without loss
// or jitter an echo takes a round trip, and costs two data packets and their
// acknowledgements, which share packets where nobody has to wait for it.
func TestSimFloor(t *testing.T) {
	c := latencyCase{size: 8, every: 20 * time.Millisecond, link: netsim.LinkConfig{Delay: 40 * time.Millisecond}}
	impl := newTickImpl(10*time.Millisecond, func(k *kcp.KCP) error {
		k.SetCongestionControl(congestion.NewNone())
		return nil
	})
	e, err := newEcho(c, impl, 1)
	fatal(t, err)
	fatal(t, e.sim.run(time.Minute, func() bool { return len(e.times) == 100 }))
	// Packets arrive at the time of a tick, which may have been at work already.
	if got := slices.Max(e.times); got < 80 || got > 90 {
		t.Errorf("an echo takes %v ms", got)
	}
	if e.client.packets < 100 || e.client.bytes < 100*(28+24+8+24) {
		t.Errorf("the client sent %d packets, %d bytes", e.client.packets, e.client.bytes)
	}
}
