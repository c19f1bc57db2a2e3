package protect

import (
	"hash/maphash"
	"sync"
)

// Packets that were received before are recognised by the anti-replay window of RFC 4303
// §3.4.3 if they have numbers (Window), else by a table of recent packets (Filter).

// Filter recognises packets that were received before, or that this end has sent
// itself. It knows them by a hash of their first bytes: the nonce, or whatever
// else the cipher puts there, and the first bytes of the encrypted content. An
// authenticating cipher never makes those twice.
//
// A Filter remembers about the last tableSize packets of either direction. It
// takes 128 KiB for each, from the first packet on. What is repeated later is
// for the state machine to recognise, to which it is a duplicate.
//
// The zero value is off: all packets are new. Enable is called before any other
// method, and the others are safe for concurrent use.
type Filter struct {
	span           int // how many bytes tell a packet from others; 0: off
	seed           maphash.Seed
	received, sent table
}

// Enable turns the filter on for packets that differ in their first n bytes.
func (f *Filter) Enable(n int) { f.span, f.seed = n, maphash.MakeSeed() }

// Mark returns what the filter knows packet by, which is as it travels. The
// filter is on. No more than the first n bytes of Enable are read.
func (f *Filter) Mark(packet []byte) uint64 {
	return maphash.Bytes(f.seed, packet[:min(f.span, len(packet))])
}

// IsNew reports whether the packet with that mark was neither received nor sent
// lately.
func (f *Filter) IsNew(mark uint64) bool {
	return f.span == 0 || !f.received.has(mark) && !f.sent.has(mark)
}

// Take reports whether the packet with that mark is new, and records that it was
// received. The packet was authenticated, so only the peers fill the table.
func (f *Filter) Take(mark uint64) bool {
	return f.span == 0 || f.received.add(mark) && !f.sent.has(mark)
}

// Sent records that packet is sent, so that it is not new if it comes back.
func (f *Filter) Sent(packet []byte) {
	if f.span != 0 {
		f.sent.add(f.Mark(packet))
	}
}

// Forget empties the filter, as many other packets would.
func (f *Filter) Forget() {
	f.received.clear()
	f.sent.clear()
}

// tableSize is how many marks a table remembers, in 128 KiB, and ways how many
// of them are in one set.
const (
	tableSize = 1 << 14
	ways      = 4
)

// table remembers the marks of packets in small sets. A mark belongs to one set,
// and replaces the oldest there. The zero value remembers none.
type table struct {
	mu   sync.Mutex     // several readers, or senders, may share a table
	sets [][ways]uint64 // nil before the first mark
}

// add remembers mark, and reports whether it is new.
func (t *table) add(mark uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sets == nil {
		t.sets = make([][ways]uint64, tableSize/ways)
	}
	set := &t.sets[mark%(tableSize/ways)]
	for _, old := range set {
		if old == mark {
			return false
		}
	}
	copy(set[1:], set[:])
	set[0] = mark
	return true
}

// has reports whether mark is remembered.
func (t *table) has(mark uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sets == nil {
		return false
	}
	for _, old := range t.sets[mark%(tableSize/ways)] {
		if old == mark {
			return true
		}
	}
	return false
}

// clear forgets all marks.
func (t *table) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.sets)
}
