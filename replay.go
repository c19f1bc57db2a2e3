package kcp

import (
	"encoding/binary"
	"sync"
)

// replayFilter recognises packets that have come before, by the random nonce
// at their front, which an authenticated cipher never uses twice. It is a table
// of small sets: a nonce belongs to one, and pushes out the oldest there. So it
// remembers about the last replaySize packets of an endpoint. What is replayed
// later than that meets the state machine, to which it is a duplicate.
//
// The zero value recognises nothing; remember turns it on.
type replayFilter struct {
	on    bool
	mu    sync.Mutex // several readers may share one
	table [][replayWays]uint64
}

// replaySize is how many nonces the filter remembers, 128 KiB of them, and
// replayWays how many of one set.
const (
	replaySize = 1 << 14
	replayWays = 4
)

// remember switches the filter on for packets with nonces of n bytes, if that
// is enough to tell them apart.
func (f *replayFilter) remember(n int) { f.on = n >= 8 }

// seen reports whether a packet with this nonce has come lately. The packet has
// been authenticated, so nobody but the peer fills the table.
func (f *replayFilter) seen(packet []byte) bool {
	if !f.on {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.table == nil {
		f.table = make([][replayWays]uint64, replaySize/replayWays)
	}
	nonce := binary.LittleEndian.Uint64(packet)
	set := &f.table[nonce%(replaySize/replayWays)]
	for _, old := range set {
		if old == nonce {
			return true
		}
	}
	copy(set[1:], set[:])
	set[0] = nonce
	return false
}
