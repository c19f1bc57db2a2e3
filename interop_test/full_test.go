package interop

import (
	"testing"
	"time"
)

const (
	// fullDraws is how many of the 256 combinations of flags a cell of the
	// cross product gets. The cells go on from one another, so that nearly all
	// combinations come up on either path.
	fullDraws = 4
	// fullPatience is the longest that a case may be expected to take.
	fullPatience = 8 * time.Second
	// lossyRoundTrip is that of the lossy path, with the time that it takes to
	// repair the losses of one window.
	lossyRoundTrip = 300 * time.Millisecond
)

// TestCrossProduct crosses paths, sizes, windows and MTUs, and goes through
// the combinations of flags along the way.
func TestCrossProduct(t *testing.T) {
	if !full {
		t.Skip("takes half an hour: set KCP_INTEROP=full")
	}
	for _, path := range []path{direct, lossy} {
		draw := 0
		for _, size := range sizes {
			for _, window := range windows {
				for _, mtu := range mtus {
					for range fullDraws {
						us, them := drawFlags(draw)
						draw++
						r := row{path, size, tuning{window, mtu, us}, tuning{window, mtu, them}}
						if r.makeFeasible() {
							r.run(t, timeLimit, draw)
						}
					}
				}
			}
		}
	}
}

// drawFlags returns a combination of flags for the two ends. 256 draws in a
// row are all different, and even a few of them vary both ends.
func drawFlags(draw int) (us, them flags) {
	us = flags(draw) & allFlags
	them = (flags(draw/16) + us*7) & allFlags
	return us, them
}

// makeFeasible switches congestion control off where AIMD would crawl. It is
// false where the window alone makes a case too slow.
func (r *row) makeFeasible() bool {
	roundTrip := interval * time.Millisecond // acknowledgements of kcp-go wait for its flush
	if r.path.relay {
		roundTrip = lossyRoundTrip
		if r.size > 1*kB {
			r.ours.flags |= nc
			r.theirs.flags |= nc
		}
	}
	windowfuls := r.size / int64(r.ours.window*r.ours.mss())
	return time.Duration(windowfuls)*roundTrip <= fullPatience
}
