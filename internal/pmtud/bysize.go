package pmtud

// A path may lose a part of the large packets, and few small ones: radio links, or one
// of several routers behind a load balancer that has a smaller MTU. A probe passes
// there by chance. So if many large packets are lost, a trial follows: half of the
// segments leave in small packets. What loses packets of all sizes, such as a full
// queue, loses as many of either half.
const (
	// A trial begins if of periodFull full segments periodLost are lost or more.
	periodFull = 256
	periodLost = 6
	// It lasts for trialFull full segments, or trialLost losses, at most. The distance to
	// the next is as long, doubled with each trial up to maxTrials times.
	trialFull = 1024
	trialLost = 32
	maxTrials = 8
	// Large packets are found to be lost by their size if at least sizeLost more of them
	// are lost than sizeRatio times the small ones. By chance that happens in one trial
	// of a hundred.
	sizeLost  = 12
	sizeRatio = 4
)

// bySize finds out whether packets are lost by their size.
type bySize struct {
	from   uint64 // full segments sent when the period or the trial began
	next   uint64 // and when the next trial may begin
	first  uint32 // sequence number of the trial's first segment
	large  uint16 // packets lost
	small  uint16 // of the trial
	trials uint8
	trying bool
	found  bool
}

// lost records a loss, after so many full segments. Packets of more than above bytes are
// large.
func (t *bySize) lost(full uint64, above int32, l Loss) {
	switch large := l.Size > above; {
	case t.found, t.trying && int32(l.SN-t.first) < 0:
	case !t.trying && large:
		if full-t.from > periodFull {
			t.from, t.large = full, 0
		}
		if t.large++; t.large >= periodLost && full > t.from && full >= t.next {
			t.from, t.first, t.large, t.small, t.trying = full, l.Next, 0, 0, true
		}
	case t.trying && large:
		t.large++
		t.found = t.large >= sizeLost+sizeRatio*t.small
	case t.trying && l.Size > above/4*3: // smaller ones were no halves of the trial
		t.small++
	}
	if t.trying && (t.found || t.large+t.small >= trialLost) {
		t.end(full)
	}
}

// end ends the trial.
func (t *bySize) end(full uint64) {
	t.trying, t.large = false, 0
	t.trials = min(t.trials+1, maxTrials)
	t.from, t.next = full, full+trialFull<<t.trials
}

// sendsSmall reports whether segment sn leaves in small packets.
func (t *bySize) sendsSmall(full uint64, sn uint32) bool {
	if t.trying && full-t.from > trialFull {
		t.end(full)
	}
	return t.trying && int32(sn-t.first) >= 0 && sn*0x9e3779b1>>31 != 0 // half of them, without a period
}
