package netpath

import "time"

// Path validation (RFC 9000 §8.2): a session gets packets of its peer from another
// address, challenges that address, and migrates there once the challenge is answered.

// challengeEvery is the least time between two challenges of one address.
const challengeEvery = 50 * time.Millisecond

// Validation is that state. P is a packet.
type Validation[P any] struct {
	challengedAt time.Duration // when challenged was sent
	alive        uint64        // the highest packet number that was a sign of life
	challenged   uint32        // number of the last challenge
	moves        uint32        // times that the peer's address has changed

	// deferred is a packet from the address whose challenge has the number deferredFor.
	// Without it a peer would deliver nothing if its address changed within a round trip
	// of each of its packets.
	deferred     *P // nil: none
	deferredSize int
	deferredFor  uint32
	moved        bool // the session has migrated since First
}

// Moves returns how often the session has migrated. v may be nil.
func (v *Validation[P]) Moves() uint32 {
	if v == nil {
		return 0
	}
	return v.moves
}

// Alive reports whether a packet from another address is a sign of life whose number is
// above all that have arrived from the peer's. A number counts once, so copies of a
// packet do not keep a session whose peer has gone. The address has no say: who sends
// from many, for a moment each, is alive.
func (v *Validation[P]) Alive(number uint64) bool {
	later := number > v.alive
	v.alive = max(v.alive, number)
	return later
}

// Due reports whether the challenge with the number is to be sent now.
func (v *Validation[P]) Due(challenge uint32, now time.Duration) bool {
	return challenge != v.challenged || now-v.challengedAt >= challengeEvery
}

// Sent tells that it was sent.
func (v *Validation[P]) Sent(challenge uint32, now time.Duration) {
	v.challenged, v.challengedAt = challenge, now
}

// Since returns for how long no challenge was sent.
func (v *Validation[P]) Since(now time.Duration) time.Duration { return now - v.challengedAt }

// Defers reports whether a packet of so many bytes waits for the answer to the challenge:
// the largest from that address does, since data matters more than signals.
func (v *Validation[P]) Defers(challenge uint32, size int) bool {
	return v.deferred == nil || v.deferredFor != challenge || size >= v.deferredSize
}

// Defer lets p wait, in place of the one before.
func (v *Validation[P]) Defer(p *P, challenge uint32, size int) {
	v.deferred, v.deferredFor, v.deferredSize = p, challenge, size
}

// Deferred returns the packet that waits; nil: none.
func (v *Validation[P]) Deferred() *P { return v.deferred }

// Drop drops the packet that waits.
func (v *Validation[P]) Drop() { v.deferred = nil }

// Moved tells that the session has migrated.
func (v *Validation[P]) Moved() {
	v.moves++
	v.moved = true
}

// First returns the packet that waits, which waits no longer, if the session has
// migrated since the last call: it comes before all others. nil: there is none. The
// session may have migrated to another address than the packet's.
func (v *Validation[P]) First() *P {
	if !v.moved {
		return nil
	}
	p := v.deferred
	v.deferred, v.moved = nil, false
	return p
}
