package incast

import "time"

// Socket is what one socket does against incast. Its reader alone uses Budget, and the
// rest of the methods except for Turns.
type Socket[S any] struct {
	Budget
	Turns[S]
}

// Follow makes turns follow the budget. The reader calls it after Due and Look.
func (s *Socket[S]) Follow() {
	equal := s.level
	if equal == 0 {
		equal = s.strangers
	}
	s.Turns.Set(s.budget, equal, s.rate, s.buffer, s.known)
}

// Sender is what a session's share of its socket's buffer depends on. It is small, as
// every session has it. The zero value is for a session without data.
type Sender struct {
	epoch     uint32 // in which data last arrived
	offered   uint32 // bytes that it has sent in the epoch, which are in a Demand
	validated bool   // it belongs to a peer whose address is validated
	packet    uint8  // largest packet with data lately, in units of packetUnit
	Light     uint8  // new segments that have arrived in the epoch, at most Least
	turn      uint8  // turnNone, turnWaits, or where its turn is; guarded by Turns.mu
}

// packetUnit is the unit of Sender.packet in bytes.
const packetUnit = 64

// PacketSize returns the size of the peer's packets in bytes, rounded up.
func (s *Sender) PacketSize() int { return max(int(s.packet), 1) * packetUnit }

// Begin begins the present epoch for a session, if it is another than at the last call.
func (s *Sender) Begin(b *Budget) {
	if s.epoch == b.epoch {
		return
	}
	s.epoch, s.offered, s.Light = b.epoch, 0, 0
	s.packet -= s.packet / 4 // so that it follows a peer whose packets become smaller
}

// Packet counts a packet of n bytes. It returns the bytes that it takes of the
// buffer.
func (s *Sender) Packet(n int) int {
	s.packet = max(s.packet, uint8(min((n+packetUnit-1)/packetUnit, 255)))
	return BufferBytes(n)
}

// Segments counts n segments that had not arrived before.
func (s *Sender) Segments(n int) { s.Light = uint8(min(int(s.Light)+n, Least)) }

// Share returns the window that a session may advertise, of whose peer n new segments
// have arrived. validated is whether the peer's address is.
func (s *Socket[S]) Share(of *S, n int, validated, several bool, now time.Duration) Grant {
	sender := s.sender(of)
	if several && (validated || s.level == 0) {
		if g, ok := s.Turns.Arrived(of, n, now); ok {
			return g
		}
	}
	return Grant{Window: s.Window(sender.PacketSize(), sender.Light < Least, validated)}
}

// Forget takes a session out, whose packets now arrive at another socket. What it has
// sent counts here alone. Forget reports whether the session has waited for a turn, or
// has used one.
func (s *Socket[S]) Forget(of *S) bool {
	s.sender(of).offered = 0
	return s.Turns.Forget(of)
}
