package crypt

import (
	crand "crypto/rand"
	"encoding/binary"
	"math/rand/v2"
	"sync"
)

const (
	// nonceShards is how many goroutines can draw nonces at once.
	nonceShards = 4
	// reseedAfter is how many nonces are drawn from one seed. A reseed costs as
	// much as some tens of nonces, which vanishes in 4096.
	reseedAfter = 4096
)

// A nonceSource draws random nonces without asking the kernel for each, which is
// a system call on most systems and may cost as much as sealing the packet.
// ChaCha8 is a cryptographically strong generator that erases its past, and
// every seed comes from crypto/rand, so that nonces repeat and can be guessed no
// more than the kernel's. It needs neither a pool that the garbage collector
// empties nor AES instructions.
//
// The state is memory of the process. If that is copied, as by starting two
// virtual machines from one snapshot, both draw the same nonces until they
// reseed, as with any generator outside the kernel; the package documentation
// warns of it. A fork without exec would do the same, but Go programs cannot.
type nonceSource struct {
	shards [nonceShards]nonceShard
}

type nonceShard struct {
	mu   sync.Mutex
	left int // nonces until the next reseed
	rng  rand.ChaCha8
}

// fill overwrites nonce with random bytes.
func (s *nonceSource) fill(nonce []byte) {
	shard := s.lock()
	if shard.left == 0 {
		shard.reseed()
	}
	shard.left--
	for ; len(nonce) >= 8; nonce = nonce[8:] {
		binary.LittleEndian.PutUint64(nonce, shard.rng.Uint64())
	}
	if len(nonce) > 0 {
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], shard.rng.Uint64())
		copy(nonce, last[:])
	}
	shard.mu.Unlock()
}

// lock returns a shard that the caller has to unlock: the first that is free.
func (s *nonceSource) lock() *nonceShard {
	for i := range s.shards {
		if s.shards[i].mu.TryLock() {
			return &s.shards[i]
		}
	}
	s.shards[0].mu.Lock()
	return &s.shards[0]
}

func (s *nonceShard) reseed() {
	var seed [32]byte
	crand.Read(seed[:]) // never fails: the program ends if the kernel has no randomness
	s.rng.Seed(seed)
	s.left = reseedAfter
}
