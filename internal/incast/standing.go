package incast

import "time"

// Others wait behind what a sender that sends most of all has in the buffer. Its
// congestion control sees no reason to send less, as the path ends in a reader that
// takes all, and its window is far more than the path needs. So the window that it
// gets keeps the standing queue short (compare RFC 8289 §3, and ICTCP).

const (
	// standingTime is the mean time that what arrives may wait in the buffer.
	standingTime = 170 * time.Microsecond
	// standingLeast is how many bytes may always be there: two merged packets.
	standingLeast = 128 << 10
	// standingLook is for how long a look at the buffer counts at most.
	standingLook = 2 * time.Millisecond
	// standingMost is how often the window may fill the buffer. A path that needs more
	// has no limit.
	standingMost = 4
)

// standing is the standing queue of a sender beside others that send little. The zero
// value is for none.
type standing struct {
	most    int    // bytes that the sender may have on the way, as the system counts them; 0: no limit
	used    int64  // bytes in the buffer times microseconds, since the last change of most
	time    int    // the microseconds
	drops   uint32 // as of the last look
	dropped bool   // datagrams were dropped since the last change
	lookAt  time.Duration
	stepAt  time.Duration
}

// look makes the window follow the buffer, of which the last batch has just been read.
// rate is how many bytes arrive in an Epoch.
func (s *standing) look(b Buffer, batch, rate int, now time.Duration) {
	if s.stepAt == 0 {
		s.drops, s.lookAt = b.Drops, now
		s.begin(rate, now)
	}
	passed := int(min(now-s.lookAt, standingLook).Microseconds())
	s.used, s.time, s.lookAt = s.used+int64(b.Used+batch)*int64(passed), s.time+passed, now
	s.dropped, s.drops = s.dropped || b.Drops != s.drops, b.Drops
	if now < s.stepAt || s.time == 0 {
		return
	}
	want := max(standingLeast, int(int64(rate)*int64(standingTime)/int64(Epoch)))
	mean := int(s.used / int64(s.time))
	switch {
	case s.most == 0:
		if mean > want || s.dropped {
			s.most = standingMost * b.Limit
		}
	case s.dropped:
		s.most /= 2
	case mean > want:
		cut := s.most - int(int64(s.most)*int64(want)/int64(mean))
		s.most -= min(cut, s.most/2, max(mean-want, s.most/8))
	case mean < want/4:
		s.most += s.most / 4
	case mean < want/4*3:
		s.most += s.most / 16
	}
	if s.most > standingMost*b.Limit {
		s.most = 0
	} else if s.most > 0 {
		s.most = max(s.most, 2*want)
	}
	s.begin(rate, now)
}

// begin begins to look at the buffer again. What arrives in the time that the window
// lasts for was sent before the last change.
func (s *standing) begin(rate int, now time.Duration) {
	round := time.Duration(int64(Epoch) * int64(s.most) / int64(max(rate, 1)))
	s.used, s.time, s.dropped = 0, 0, false
	s.stepAt = now + min(max(stepTime, round), Epoch/5)
}
