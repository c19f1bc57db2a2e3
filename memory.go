package kcp

// Memory held because of a peer. What it sends is small against what has to be
// kept for it: a place in the ring, a buffer of some size, an acknowledgement to
// be sent. All of that is counted, in bytes as they are in memory, and what is
// counted is what limits are compared with.

const (
	// placeBytes is what a place of the receive ring takes.
	placeBytes = 40
	// ackBytesHeld, repeatBytesHeld and signalBytesHeld are what an
	// acknowledgement, one to be repeated, and a signal take that wait to be sent.
	ackBytesHeld    = 8
	repeatBytesHeld = 20
	signalBytesHeld = 12
	// piecesBytesHeld is what a segment that is put together takes beside its
	// bytes.
	piecesBytesHeld = 256

	// unvalidatedBytes bounds what is held for a peer whose address is not
	// validated, and legacyBytes the same for one whose session an application
	// has: it may never get to send something that the peer could validate its
	// address with, and has to be able to read the longest message of the
	// reference.
	unvalidatedBytes = reservedBytes
	legacyBytes      = 256 << 10
	// unvalidatedAcks bounds the acknowledgements that wait for such a peer.
	unvalidatedAcks = 256
	// unvalidatedReach is how far ahead, in segments, such a peer may send what is
	// kept, and sessionReach and reachGrowth how far other peers of sessions may:
	// so far, or so many times what is held. A place has to be kept for all that
	// is missing before it.
	unvalidatedReach = 64
	sessionReach     = 4096
	reachGrowth      = 16
)

// Held returns the bytes of memory that are held because of what the peer has
// sent: data that was not yet read, the places kept for what is missing before
// it, parts of segments, acknowledgements that wait to be sent, and buffers kept
// for what comes next, which Compact gives back.
func (k *KCP) Held() int {
	return len(k.rcv.ring.slots)*placeBytes + k.rcv.held + k.rcv.buffers.size() + cap(k.rcv.acks)*ackBytesHeld +
		cap(k.rcv.ackRepeats.items)*repeatBytesHeld + cap(k.signals)*signalBytesHeld
}

// costOf returns the bytes that it takes to hold n bytes as the segment sn.
func (k *KCP) costOf(sn seq, n int) int {
	cost := 0
	if n > 0 {
		_, cost = bufferSize(n)
	}
	head := k.rcv.nxt - seq(k.rcv.queued)
	if places := int(sn-head) + 1; places > len(k.rcv.ring.slots) {
		cost += (ringSize(places) - len(k.rcv.ring.slots)) * placeBytes
	}
	return cost
}

// memoryPressure is how new data is turned away, for want of memory.
type memoryPressure uint8

const (
	pressureNone     memoryPressure = iota
	pressureHigh                    // take only what can be read, or makes something so
	pressureReserved                // the same, and never more than reservedBytes: nobody reads it yet
)

// reservedBytes is how much is held while memory is short.
const reservedBytes = 16 << 10

// dropsForMemory reports whether the segment sn, of n bytes, which lies in the window or
// before it, is turned away if it is new: because it is too far ahead, because the peer is a
// stranger, or because memory is short.
func (k *KCP) dropsForMemory(sn seq, n int) bool {
	ahead := uint32(sn - k.rcv.nxt)
	if k.hooks.frugal && ahead > max(sessionReach, reachGrowth*(k.rcv.queued+uint32(k.rcv.early))) {
		return true
	}
	if k.rcv.peerUnvalidated {
		limit, needed := unvalidatedBytes, false
		if k.rcv.pressure != pressureReserved {
			// A message that could not become whole would never be read.
			limit, needed = k.legacyLimit(), sn == k.rcv.nxt && k.rcv.queued == k.rcv.partial
		}
		if ahead > unvalidatedReach || !needed && k.Held()+k.costOf(sn, n) > limit {
			return true
		}
	}
	return k.shortOfMemory(sn)
}

// legacyLimit returns what may be held for a peer whose address is not validated,
// and whose session an application has: little, and more as it sends more.
func (k *KCP) legacyLimit() int {
	if k.snd.validation == nil {
		return legacyBytes
	}
	return min(legacyBytes, unvalidatedBytes+2*k.snd.validation.total)
}

// short is spares for want of memory. The next segment in order is taken as
// long as there is nothing to read, for want of it or of the rest of a message,
// or what there is is little and being read, so the conversation goes on.
func (k *KCP) shortOfMemory(sn seq) bool {
	if k.rcv.pressure == pressureNone {
		return false
	}
	readable := k.rcv.queued > k.rcv.partial || k.rcv.pressure == pressureReserved
	return sn != k.rcv.nxt || readable && k.rcv.held >= reservedBytes
}
