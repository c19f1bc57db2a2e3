package recovery

import (
	"time"

	"github.com/arqnet/kcp/stats"
)

// LimitFacts are what a flush has found at its end.
type LimitFacts struct {
	Waits      bool // segments wait to be sent for the first time
	Resend     bool // some wait to be sent again
	InFlight   bool // some are not acknowledged
	Capped     bool // something waits for the cap of the rate
	Congestion bool // the congestion window is full, and smaller than others that are
	Peer       bool // the peer's window, or with Send the send window, is full
	Send       bool
	Address    bool // the peer's address is not validated
	Credit     bool // streams have more than the peer has given credit for
	Reader     bool // what has arrived and was not read fills half of the window
}

// Limit is what limits a session, and what that depends on beside LimitFacts.
type Limit struct {
	By      stats.Limit // the present limit
	Refused bool        // a write was, for lack of room, and none has come since
	Outage  bool        // the peer answers nothing
	full    stats.Limit // the window or buffer that was last full; LimitApplication: none lately
	fullAt  uint32      // when, in milliseconds
}

// rounds is for how many round trips a window or buffer that was full explains that
// pacing holds: its rate is what they have let through.
const rounds = 2

// Next finds what limits the session from now on, a time in milliseconds, and reports
// whether that has changed. rtt is the round-trip time in milliseconds.
func (s *Limit) Next(f LimitFacts, now uint32, rtt int32) bool {
	was := s.By
	s.Refused = s.Refused && f.InFlight
	switch waits := f.Waits || f.Resend; {
	case s.Outage:
		s.By = stats.LimitOutage
	case !waits && f.Capped:
		s.By = stats.LimitRate // for datagrams
	case !waits && f.Credit:
		s.By = stats.LimitPeerWindow
	case !waits && f.Reader:
		s.By = stats.LimitReader
	case !waits && s.Refused:
		s.By = stats.LimitWriteBuffer
	case !waits:
		s.By = stats.LimitApplication
	case f.Congestion:
		s.By = stats.LimitCongestion
	case f.Peer && f.Send:
		s.By = stats.LimitSendWindow
	case f.Peer && f.Waits:
		s.By = stats.LimitPeerWindow
	case f.Capped:
		s.By = stats.LimitRate
	case f.Address:
		s.By = stats.LimitHandshake
	default:
		s.By = stats.LimitPacing
	}
	switch s.By {
	case stats.LimitPeerWindow, stats.LimitSendWindow, stats.LimitWriteBuffer:
		s.full, s.fullAt = s.By, now
	case stats.LimitPacing:
		if int64(now-s.fullAt) > rounds*int64(rtt) {
			s.full = stats.LimitApplication
		}
		if s.full != stats.LimitApplication {
			s.By = s.full
		}
	}
	return s.By != was
}

// LimitClock counts for how long each limit has been the present one. Times are of one
// clock, which does not run backwards. It has no lock. A nil LimitClock belongs to a
// session whose handshake goes on.
type LimitClock struct {
	times stats.LimitTimes // up to since
	since time.Duration    // when by began
	by    stats.Limit
	ended bool // nothing is counted any more
}

// NewLimitClock returns a LimitClock of a session whose handshake lasted from born until
// now, and which by limits from now on.
func NewLimitClock(born, now time.Duration, by stats.Limit) *LimitClock {
	return &LimitClock{stats.LimitTimes{stats.LimitHandshake: now - born}, now, by, false}
}

// Change makes by the present limit.
func (c *LimitClock) Change(by stats.Limit, now time.Duration) {
	if !c.ended {
		c.times[c.by] += max(now-c.since, 0)
		c.since, c.by = max(now, c.since), by
	}
}

// End ends the count of a session that was born at a time, for good, and returns it.
func (c *LimitClock) End(born, now time.Duration) *LimitClock {
	if c == nil {
		c = NewLimitClock(born, now, stats.LimitHandshake)
	}
	c.Change(c.by, now)
	c.ended = true
	return c
}

// Add adds to t for how long each limit has been the present one, of a session that was
// born at a time, and returns the present one.
func (c *LimitClock) Add(t *stats.LimitTimes, born, now time.Duration) stats.Limit {
	if c == nil {
		c = NewLimitClock(born, now, stats.LimitHandshake)
	}
	c.Change(c.by, now)
	for i, d := range c.times {
		t[i] += d
	}
	return c.by
}
