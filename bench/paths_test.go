package main

import (
	"fmt"
	"hash/fnv"
	"testing"
	"time"

	"github.com/arqnet/kcp/netsim"
)

// TestPathsStay wants the paths to be the same as ever: figures of another build
// mean something only then. The sum is of what describePath says.
func TestPathsStay(t *testing.T) {
	sum := fnv.New64a()
	for i, c := range suites["paths"].cases {
		fmt.Fprintln(sum, describePath(c))
		fatal(t, drawPath(uint64(i+1)).Validate())
	}
	if got, want := describePath("path-5"), "7.2 Mbit/s, RTT 12.6 ms, queue 0.50 BDP (5 kB), 1.37 % in bursts of 4.2, jitter 4.0 ms"; got != want {
		t.Errorf("path-5 is %s, want %s", got, want)
	}
	if got, want := sum.Sum64(), uint64(0x1fc154941166b72b); got != want {
		t.Errorf("other paths: sum %#x, want %#x", got, want)
	}
}

// TestPathsCountWhatIsLate wants messages that never arrive to count with the time
// until the run gave up, and on a good path all to take its delay.
func TestPathsCountWhatIsLate(t *testing.T) {
	messages, err := latencyImpl(ours, false)
	fatal(t, err)
	const delay = 7 * time.Millisecond
	for loss, want := range map[float64]time.Duration{0: delay, 1: pathsPatience} {
		var got pathResult
		err := frozen(func() error {
			return newPathRun(netsim.LinkConfig{Delay: delay, Loss: loss}, 1, &got).run(messages, nil, pathsSettle+10*time.Second)
		})
		fatal(t, err)
		if len(got.worst) != 3*pathsFlows {
			t.Errorf("loss %v: %d hundreds", loss, len(got.worst))
		}
		for _, ms := range got.worst {
			if took := time.Duration(ms * float64(time.Millisecond)); took < want || took > want+10*time.Second {
				t.Errorf("loss %v: %v, want %v", loss, took, want)
			}
			if loss == 0 && ms != 7 {
				t.Errorf("%v ms without loss", ms)
			}
		}
	}
}
