package kcp

import (
	"github.com/arqnet/kcp/internal/bufpool"
	"github.com/arqnet/kcp/internal/ring"
)

// Accounting for the memory held because of the peer. What a peer sends is
// small compared with what must be kept for it: a place in the ring, a buffer
// of some size class, an acknowledgement to be sent. All of it is counted, in
// bytes as allocated, and limits are compared with that count.

const (
	// placeBytes is the size of a place of the receive queue, or of the ring.
	placeBytes = 40
	// ackBytesHeld and signalBytesHeld are the sizes of a waiting acknowledgement, and of
	// a waiting signal.
	ackBytesHeld    = 8
	signalBytesHeld = 12

	// unvalidatedBytes bounds what is held for a peer whose address is not
	// validated (RFC 9000 §8). legacyBytes is the bound once the session has
	// been offered to Accept. It is larger because the application may never
	// send anything that validates the address, and must be able to read the
	// longest message of the reference.
	unvalidatedBytes = reservedBytes
	legacyBytes      = 256 << 10
	// unvalidatedAcks bounds the acknowledgements that wait for such a peer.
	unvalidatedAcks = 256
	// unvalidatedReach is how far ahead of rcv_nxt, in segments, such a peer's
	// data is kept. Other peers of sessions may send sessionReach segments
	// ahead, or reachGrowth times the number held if that is more. The ring
	// needs a place for every segment that is missing before a kept one.
	unvalidatedReach = 64
	sessionReach     = 4096
	reachGrowth      = 16
)

// Held returns the bytes of memory held because of what the peer has sent: data not yet
// read, places of missing segments, pieces, waiting acknowledgements, and buffers kept
// for reuse, which Compact releases.
func (k *KCP) Held() int {
	n := k.rcv.held + k.rcv.buffers.Held()
	if k.rcv.assembly != nil {
		n += k.rcv.assembly.Bytes()
	}
	n += k.rcv.ackRepeats.Memory()
	if k.rare != nil {
		n += k.rare.own.ring.Len() * placeBytes
	}
	return n + (k.rcv.queue.places.Len()+k.rcv.ring.Len())*placeBytes + cap(k.rcv.acks)*ackBytesHeld +
		cap(k.signals)*signalBytesHeld
}

// costOf returns the bytes of memory needed, beyond what is allocated already,
// to hold n bytes as segment sn.
func (k *KCP) costOf(sn seq, n int) int {
	cost := 0
	if n > 0 {
		cost = bufpool.Size(n)
	}
	places, have := int(sn-k.rcv.nxt)+1, k.rcv.ring.Len()
	if sn == k.rcv.nxt && !k.receiveFull() {
		places, have = int(k.rcv.queue.n)+1, k.rcv.queue.places.Len()
	}
	if places > have {
		cost += (ring.Size(places) - have) * placeBytes
	}
	return cost
}

// memoryPressure says how strictly new data is dropped to save memory. Under
// any pressure only the next segment in order is taken.
type memoryPressure uint8

const (
	// pressureNone drops nothing.
	pressureNone memoryPressure = iota
	// pressureHigh takes that only while nothing can be read, or less than
	// reservedBytes is held.
	pressureHigh
	// pressureReserved takes that only while less than reservedBytes is held:
	// no application reads it yet.
	pressureReserved
)

// reservedBytes is how many bytes a session may hold under memory pressure.
const reservedBytes = 16 << 10

// dropsForMemory reports whether segment sn, of n bytes, is dropped if it is
// new. It is if it lies too far ahead, if the peer's address is not validated
// and the limits for that are reached, or under memory pressure. sn lies in the
// receive window or before it.
func (k *KCP) dropsForMemory(sn seq, n int) bool {
	ahead := uint32(sn - k.rcv.nxt)
	if k.hooks.frugal && ahead > max(sessionReach, reachGrowth*(k.rcv.queue.n+k.rcv.early)) {
		return true
	}
	if k.rcv.peerUnvalidated {
		limit, needed := unvalidatedBytes, false
		if k.rcv.pressure != pressureReserved {
			// A message that cannot be completed would never be read.
			limit, needed = k.legacyLimit(), sn == k.rcv.nxt && k.rcv.queue.n == k.rcv.partial
		}
		if ahead > unvalidatedReach || !needed && k.Held()+k.costOf(sn, n) > limit {
			return true
		}
	}
	return k.shortOfMemory(sn)
}

// legacyLimit returns the bytes that may be held for a peer whose address is
// not validated once the session has been offered to Accept. The limit grows
// with what the peer sends.
func (k *KCP) legacyLimit() int {
	if k.snd.validation == nil {
		return legacyBytes
	}
	return min(legacyBytes, unvalidatedBytes+2*k.snd.validation.Total())
}

// shortOfMemory reports whether segment sn is dropped because of memory
// pressure. The next in-order segment is still accepted while the application
// has nothing complete to read, or has little buffered, so the session cannot
// stall. Under pressureReserved only the latter counts.
func (k *KCP) shortOfMemory(sn seq) bool {
	if k.rcv.pressure == pressureNone {
		return false
	}
	readable := k.rcv.queue.n > k.rcv.partial || k.rcv.pressure == pressureReserved
	held := k.rcv.held
	if k.rcv.assembly != nil {
		held += k.rcv.assembly.Bytes()
	}
	return sn != k.rcv.nxt || readable && held >= reservedBytes
}
