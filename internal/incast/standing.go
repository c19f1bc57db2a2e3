package incast

import "time"

// Others wait behind what a sender that sends most of all has in the buffer. Its
// congestion control sees no reason to send less, as the path ends in a reader that
// takes all, and its window is far more than the path needs. So the window that it
// gets keeps the standing queue short (compare RFC 8289 §3, and ICTCP).

const (
	// standingTime is the mean time that what arrives may wait in the buffer.
	standingTime = 175 * time.Microsecond
	// standingLeast is how many bytes may always be there: two merged packets.
	standingLeast = 128 << 10
	// standingMost is how often the window may fill the buffer. A path that needs more
	// has no limit.
	standingMost = 4
)

// standing is the standing queue of a sender beside others that send little. The zero
// value is for none.
type standing struct {
	most    int    // bytes that the sender may have on the way, as the system counts them; 0: no limit
	used    int    // sum of the bytes in the buffer, of the looks since the last change of most
	looks   int    // how many those were
	drops   uint32 // as of the last look
	dropped bool   // datagrams were dropped since the last change
	stepAt  time.Duration
}

// look makes the window follow the buffer. rate is how many bytes arrive in an Epoch.
func (s *standing) look(b Buffer, rate int, now time.Duration) {
	if s.looks == 0 && s.stepAt == 0 {
		s.drops = b.Drops
		s.begin(rate, now)
	}
	s.dropped, s.drops = s.dropped || b.Drops != s.drops, b.Drops
	s.used, s.looks = s.used+b.Used, s.looks+1
	if now < s.stepAt {
		return
	}
	want := max(standingLeast, int(int64(rate)*int64(standingTime)/int64(Epoch)))
	mean := s.used / s.looks
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
	s.used, s.looks, s.dropped = 0, 0, false
	s.stepAt = now + min(max(stepTime, round), Epoch/5)
}
