package main

import (
	"slices"
	"testing"
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
