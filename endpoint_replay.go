package kcp

import (
	"hash/maphash"
	"sync"
)

// replayFilter recognises packets that have come before, or that the endpoint
// has sent itself, by a hash of what is at their front: the nonce, or whatever
// the cipher has there, and what it has made of the first bytes of the content.
// An authenticating cipher never makes that twice. It remembers about the last replaySize packets of
// either direction. What comes again later meets the state machine, to which it
// is a duplicate.
//
// The zero value recognises nothing; remember turns it on.
type replayFilter struct {
	span           int // how many bytes of a packet tell it from others; 0: off
	seed           maphash.Seed
	received, sent packetTable
}

// remember switches the filter on for packets that are told apart by their first
// n bytes.
func (f *replayFilter) remember(n int) { f.span, f.seed = n, maphash.MakeSeed() }

// replayContent is how many bytes behind a cipher's header tell packets apart,
// where it is not known what the header is. Ciphers that draw nonces themselves
// have them there.
const replayContent = 16

// mark returns what packet, as it travels, is known by.
func (f *replayFilter) mark(packet []byte) uint64 {
	return maphash.Bytes(f.seed, packet[:min(f.span, len(packet))])
}

// seen reports whether a packet has come lately, or was sent, and notes that it
// has come. It has been authenticated, so nobody but the peers fills the table.
func (f *replayFilter) seen(p *inPacket) bool {
	if f.span == 0 {
		return false
	}
	mark := f.markOf(p)
	return f.received.add(mark) || f.sent.has(mark)
}

// knows is seen for a packet that is only looked at.
func (f *replayFilter) knows(p *inPacket) bool {
	if f.span == 0 {
		return false
	}
	mark := f.markOf(p)
	return f.received.has(mark) || f.sent.has(mark)
}

// markOf returns the mark of a packet that the cipher has opened.
func (f *replayFilter) markOf(p *inPacket) uint64 {
	if p.nonce != nil {
		return f.mark(p.nonce) // which Open has left as it was
	}
	return p.mark
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
