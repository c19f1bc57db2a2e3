package netpath

// A path may lose a part of the large packets, and few small ones: radio links, or one
// of several routers behind a load balancer that has a smaller MTU. A probe passes
// there by chance. So if many large packets are lost, a trial follows: half of the
// segments leave in small packets. What loses packets of all sizes, such as a full
// queue, loses as many of either half.
const (
	// A trial begins if of periodFull full segments periodLost are lost or more.
	periodFull = 256
	periodLost = 6
	// It lasts for trialFull full segments, or trialLost losses, at most. The next begins
	// trialGap milliseconds later at the earliest, doubled with each up to maxTrials
	// times.
	trialFull = 1024
	trialLost = 32
	trialGap  = 1000
	maxTrials = 6
	// Large packets are found to be lost by their size if at least sizeLost more of them
	// are lost than sizeRatio times the small ones. By chance that happens in one trial
	// of a hundred.
	sizeLost  = 12
	sizeRatio = 4
)

// bySize finds out whether packets are lost by their size.
type bySize struct {
	from   uint64 // full segments sent when the period or the trial began
	ended  uint32 // when the last trial ended, in milliseconds
	first  uint32 // sequence number of the trial's first segment
	least  int32  // bytes of the smallest large packet that the trial has lost
	large  uint16 // packets lost
	small  uint16 // of the trial
	trials uint8
	trying bool
	some   bool // packets as large as a lost one have arrived: it is no black hole
	found  bool
}

// lost records a loss, after so many full segments. Packets of more than above bytes are
// large.
func (t *bySize) lost(full uint64, above int32, l SizedLosses) {
	switch large := l.Size > above; {
	case t.found, t.trying && int32(l.SN-t.first) < 0:
	case !t.trying && large:
		if full-t.from > periodFull {
			t.from, t.large = full, 0
		}
		if t.large++; t.large >= periodLost && full > t.from && t.mayTry(l.Now) {
			t.from, t.first, t.large, t.small, t.trying = full, l.Next, 0, 0, true
			t.some = false
		}
	case t.trying && large:
		if t.large == 0 || l.Size < t.least {
			t.least = l.Size
		}
		t.large++
		t.found = t.some && t.large >= sizeLost+sizeRatio*t.small
	case t.trying && l.Size > above/4*3: // smaller ones were no halves of the trial
		t.small++
	}
	if t.trying && (t.found || t.large+t.small >= trialLost) {
		t.end(full, l.Now)
	}
}

// arrived records that a packet of size bytes has arrived. Only after the first loss of
// the trial it is taken for one of the trial.
func (t *bySize) arrived(size int32) { t.some = t.some || t.large > 0 && size >= t.least }

// mayTry reports whether a trial may begin, at a time in milliseconds.
func (t *bySize) mayTry(now uint32) bool {
	return t.trials == 0 || now-t.ended >= trialGap<<t.trials
}

// end ends the trial, at a time in milliseconds.
func (t *bySize) end(full uint64, now uint32) {
	t.trying, t.large, t.from, t.ended = false, 0, full, now
	t.trials = min(t.trials+1, maxTrials)
}

// sendsSmall reports whether segment sn leaves in small packets, at a time in
// milliseconds.
func (t *bySize) sendsSmall(full uint64, sn, now uint32) bool {
	if t.trying && full-t.from > trialFull {
		t.end(full, now)
	}
	return t.trying && int32(sn-t.first) >= 0 && sn*0x9e3779b1>>31 != 0 // half of them, without a period
}
