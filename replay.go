package kcp

import (
	"hash/maphash"
	"sync"
)

// replayFilter recognises packets that have come before, or that the endpoint
// has sent itself, by a hash of what is at their front: the nonce, and what the
// cipher has made of the first bytes of the content. An authenticating cipher
// never makes that twice. It remembers about the last replaySize packets of
// either direction. What comes again later meets the state machine, to which it
// is a duplicate.
//
// The zero value recognises nothing; remember turns it on.
type replayFilter struct {
	span           int // how many bytes of a packet tell it from others; 0: off
	seed           maphash.Seed
	received, sent packetTable
}

// remember switches the filter on for packets with head bytes in front of their
// content. Ciphers with nonces of their own may have none: then these are in
// the content's place.
func (f *replayFilter) remember(head int) {
	f.span, f.seed = head+replayContent, maphash.MakeSeed()
}

// replayContent is how many bytes behind the cipher's header are hashed. They
// are not less than what is left of a nonce of 12 bytes, or a tag of 16.
const replayContent = 16

// mark returns what packet, as it travels, is known by.
func (f *replayFilter) mark(packet []byte) uint64 {
	if f.span == 0 {
		return 0
	}
	return maphash.Bytes(f.seed, packet[:min(f.span, len(packet))])
}

// seen reports whether a packet has come lately, or was sent. It has been
// authenticated, so nobody but the peers fills the table.
func (f *replayFilter) seen(mark uint64) bool {
	return f.span != 0 && (f.received.add(mark) || f.sent.has(mark))
}

// leaves notes that a packet is sent, so that it is not taken when it comes
// back.
func (f *replayFilter) leaves(packet []byte) {
	if f.span != 0 {
		f.sent.add(f.mark(packet))
	}
}

// packetTable remembers the marks of packets in small sets: a mark belongs to
// one, and pushes out the oldest there.
type packetTable struct {
	mu   sync.Mutex // several readers, or senders, may share one
	sets [][replayWays]uint64
}

// replaySize is how many marks a table remembers, in 128 KiB, and replayWays
// how many of one set.
const (
	replaySize = 1 << 14
	replayWays = 4
)

// add remembers mark. It is true where that was there already.
func (t *packetTable) add(mark uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sets == nil {
		t.sets = make([][replayWays]uint64, replaySize/replayWays)
	}
	set := &t.sets[mark%(replaySize/replayWays)]
	for _, old := range set {
		if old == mark {
			return true
		}
	}
	copy(set[1:], set[:])
	set[0] = mark
	return false
}

// has reports whether mark is remembered.
func (t *packetTable) has(mark uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sets == nil {
		return false
	}
	for _, old := range t.sets[mark%(replaySize/replayWays)] {
		if old == mark {
			return true
		}
	}
	return false
}
