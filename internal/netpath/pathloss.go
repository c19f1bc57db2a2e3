package netpath

import (
	"time"

	"github.com/arqnet/kcp/stats"
)

// How many packets of a session are lost in each direction. Both ends tell each other how
// many they have sent, and how many of the other's are missing (compare the receiver
// reports of RTP, RFC 3550 §6.4.1).
//
// What the peer tells may be false. Counts neither wrap nor fall, and of this end's
// packets no more are lost than it has sent.

const (
	// interval is the least time of an interval.
	interval = 500 * time.Millisecond
	// askEvery is the least time between two questions beside data, and AskAfter how many
	// packets this end has sent meanwhile: of fewer, a share says little.
	askEvery = time.Second
	AskAfter = 256
	// answerTime is how long an answer may take. Until then, what the peer tells by itself
	// says nothing of this end's packets: it may be of before the question.
	answerTime = 5 * time.Second
)

// Losses is what both ends have told. The zero value is ready.
type Losses struct {
	out, in direction // this end's packets, and the peer's

	told     uint64        // packets of this end, as it has told last
	asked    uint64        // as it had told with the question that waits
	askedAt  time.Duration // when it has asked last; 0: never
	waits    bool          // a question waits for its answer
	peerSent uint32        // as the peer has told last
	missing  uint32        // the same of this end's packets
	taken    uint32        // of missing, what out has
	heard    bool          // the peer has told something
}

// direction is the packets of one direction.
type direction struct {
	stats.Loss
	at            time.Duration // when the interval began
	counted, lost uint64        // up to then
}

// settle ends the interval if it was long enough.
func (d *direction) settle(now time.Duration) {
	if now-d.at >= interval {
		d.RecentCounted, d.RecentLost = d.Counted-d.counted, d.Lost-d.lost
		d.counted, d.lost, d.at = d.Counted, d.Lost, now
	}
}

// Ask tells, with a question, how many packets this end has sent, the one with this
// included, and how many of the peer's are missing, modulo 2^32.
func (s *Losses) Ask(sent uint64, now time.Duration) (uint32, uint32) {
	told, missing := s.Answer(sent)
	if now = max(now, 1); !s.waits || now-s.askedAt >= askEvery { // else the answer may be to the one before
		s.waits, s.asked, s.askedAt = true, s.told, now
	}
	return told, missing
}

// Answer is Ask without a question.
func (s *Losses) Answer(sent uint64) (uint32, uint32) {
	s.told = max(s.told, sent)
	return uint32(s.told), uint32(s.in.Lost)
}

// Take takes what the peer tells, and whether that answers. received is how many of its
// packets have arrived. What comes late is left out.
func (s *Losses) Take(sent, missing uint32, answers bool, received uint64, now time.Duration) {
	news := int32(sent - s.peerSent)
	if news <= 0 {
		return
	}
	s.peerSent, s.missing, s.heard = sent, missing, true
	s.in.Counted += uint64(news)
	if s.in.Counted > received {
		s.in.Lost = max(s.in.Lost, s.in.Counted-received)
	}
	s.in.settle(now)
	switch {
	case answers && s.waits:
		s.waits = false
		s.settle(s.asked, now)
	case !answers && (s.askedAt == 0 || now-s.askedAt >= answerTime):
		s.settle(s.told, now)
	}
}

// settle takes what the peer has told for what it knows of so many packets.
func (s *Losses) settle(told uint64, now time.Duration) {
	if more := int32(s.missing - s.taken); more > 0 && s.out.Lost+uint64(more) <= told {
		s.out.Lost, s.taken = s.out.Lost+uint64(more), s.missing
	}
	s.out.Counted = max(s.out.Counted, told)
	s.out.settle(now)
}

// Due reports whether a question may leave beside data, AskAfter packets after the last.
// s may be nil.
func (s *Losses) Due(now time.Duration) bool { return s == nil || now-s.askedAt >= askEvery }

// Heard reports whether the peer has told something. s may be nil.
func (s *Losses) Heard() bool { return s != nil && s.heard }

// Loss returns the loss of this end's packets, and of the peer's. s may be nil.
func (s *Losses) Loss() (out, in stats.Loss) {
	if s == nil {
		return out, in
	}
	return s.out.Loss, s.in.Loss
}
