package netpath

import (
	"github.com/arqnet/kcp/internal/container"
	"github.com/arqnet/kcp/internal/wire"
)

// The anti-amplification limit (RFC 9000 §8.1), and how the ACK of a segment lifts it.
// Anyone can open a session with a forged source address. Until the peer has shown that
// it receives what is sent to its address, at most three times as many bytes are sent
// there as have arrived from it. All bytes count.
//
// The peer shows it by echoing something that only the packets sent to it contain. For
// an extended peer that is a token or the argument of a PING. Every KCP peer echoes the
// ts of a segment in its ACK, which cannot be guessed if the clock begins at a random
// time. snd_una and sequence numbers prove nothing: they begin at 0.

const (
	// factor is how many bytes may be sent to an address that is not validated for each
	// byte received from it.
	factor = 3
	// maxCredit bounds the unused credit, in bytes.
	maxCredit = 1 << 20
	// firstShare limits the first segment to a sixth of the credit, so that it can be
	// retransmitted: until its ACK arrives nothing else can be sent.
	firstShare = 6
	// ackAfter is how many bytes a legacy peer must send before it is acknowledged,
	// while something is in flight to it. Until then it retransmits, which earns credit
	// for the segment that validates its address, however often that is lost. A peer
	// with nothing left to retransmit would fall silent, and the session could be stuck
	// without credit. During the first ackHold milliseconds acknowledgements are
	// withheld even with nothing in flight: the application may be about to reply.
	ackAfter = 200
	ackHold  = 250
	// echoMemory is how many transmissions of data segments are remembered. An ACK of
	// any of them validates the address. Four leave in two seconds while the peer is
	// heard, so an ACK may take half a minute.
	echoMemory = 64
	// answerPeriod is the time, in milliseconds, in which a number of requests of the
	// peer are answered.
	answerPeriod = 100
)

// AmplificationLimit is the limit for a peer whose address is not validated. Times are on
// a clock of milliseconds. Methods whose comment says so may be called of nil: there is no
// limit.
type AmplificationLimit struct {
	credit   int              // bytes that may still be sent; negative: overdrawn
	overhead int              // bytes that a packet has beside its segments
	unacked  int              // bytes that must still arrive before the peer is acknowledged
	total    int              // bytes that have arrived, up to maxCredit
	begun    container.Serial // when the first packet arrived

	sent  [echoMemory]transmission // a ring of the latest transmissions
	count int                      // transmissions so far
	done  bool                     // an ACK has echoed one of them

	answers  int              // requests taken since answered
	answered container.Serial // when the present answerPeriod began
}

// transmission identifies a transmission by what an ACK of it echoes.
type transmission struct{ sn, ts container.Serial }

// NewAmplificationLimit returns a limit for packets that have overhead bytes beside their
// segments. Acknowledgements to a legacy peer are withheld at first.
func NewAmplificationLimit(overhead int, legacy bool, now container.Serial) *AmplificationLimit {
	l := &AmplificationLimit{overhead: overhead, begun: now}
	if legacy {
		l.unacked = ackAfter
	}
	return l
}

// Received adds the credit for a packet of n bytes from the peer's address. It reports
// whether there is a limit: l may be nil.
func (l *AmplificationLimit) Received(n int) bool {
	if l == nil {
		return false
	}
	l.credit = min(l.credit+factor*n, maxCredit)
	l.unacked = max(l.unacked-n, 0)
	l.total = min(l.total+n, maxCredit)
	return true
}

// Total returns the bytes that have arrived, up to 1 MiB.
func (l *AmplificationLimit) Total() int { return l.total }

// Take takes n bytes from the credit, for a packet. It reports false, and takes
// nothing, if the credit is smaller. l may be nil.
func (l *AmplificationLimit) Take(n int) bool {
	if l == nil {
		return true
	}
	if l.credit < n {
		return false
	}
	l.credit -= n
	return true
}

// Overhead returns the bytes that a packet has beside its segments.
func (l *AmplificationLimit) Overhead() int { return l.overhead }

// Allows reports whether n bytes may be sent, which begin a packet or fit into another.
func (l *AmplificationLimit) Allows(n int, begin bool) bool {
	if begin {
		n += l.overhead
	}
	return l.credit >= n
}

// Charge takes n bytes from the credit, which may become negative. They begin a packet or
// fit into another.
func (l *AmplificationLimit) Charge(n int, begin bool) {
	if begin {
		n += l.overhead
	}
	l.credit -= n
}

// Overdrawn reports whether more was charged than may be sent. l may be nil.
func (l *AmplificationLimit) Overdrawn() bool { return l != nil && l.credit < 0 }

// MayBegin reports whether the credit allows a data segment that is sent for the first
// time, of n bytes with those before it that were not charged yet. Half of the credit
// is left for retransmissions, unless nothing is in flight.
func (l *AmplificationLimit) MayBegin(n int, inFlight bool) bool {
	n += l.overhead
	if inFlight {
		n *= 2
	}
	return n <= l.credit
}

// FirstSize returns the payload size of the first of the segments of which the first
// could have n bytes, if nothing is in flight. It is cut short if need be, so that it can
// be sent several times: the others may have to wait for its ACK. While acknowledgements
// are withheld the peer keeps retransmitting, and earns credit, so credit for two
// transmissions is enough.
func (l *AmplificationLimit) FirstSize(n int, withheld bool) int {
	header := l.overhead + wire.HeaderSize
	if withheld && n <= l.credit/2-header {
		return n
	}
	return min(max(l.credit/firstShare-header, 1), n)
}

// Withholds reports whether the peer is not acknowledged for now. l may be nil.
func (l *AmplificationLimit) Withholds(inFlight bool, now container.Serial) bool {
	return l != nil && l.unacked > 0 && (inFlight || now-l.begun < ackHold)
}

// AcknowledgeAtOnce ends Withholds: the peer has turned out to be an extended one. l
// may be nil.
func (l *AmplificationLimit) AcknowledgeAtOnce() {
	if l != nil {
		l.unacked = 0
	}
}

// MayAnswer reports whether a request that arrives now is answered, and counts it. most
// of them are in a tenth of a second.
func (l *AmplificationLimit) MayAnswer(now container.Serial, most int) bool {
	if l.answers == 0 || now-l.answered >= answerPeriod {
		l.answers, l.answered = 0, now
	}
	if l.answers >= most {
		return false
	}
	l.answers++
	return true
}

// Transmitted records a transmission of a data segment.
func (l *AmplificationLimit) Transmitted(sn, ts container.Serial) {
	l.sent[l.count%echoMemory] = transmission{sn, ts}
	l.count++
}

// Acknowledged reports whether an ACK echoes one of the latest transmissions. Any other
// ACK, and any una, may be guessed. They count for nothing until the address is
// validated.
func (l *AmplificationLimit) Acknowledged(sn, ts container.Serial) bool {
	for _, s := range l.sent[:min(l.count, echoMemory)] {
		if s == (transmission{sn, ts}) {
			l.done = true
			return true
		}
	}
	return false
}

// Echoed reports whether an ACK has echoed a transmission, which validates the address.
// l may be nil.
func (l *AmplificationLimit) Echoed() bool { return l != nil && l.done }
