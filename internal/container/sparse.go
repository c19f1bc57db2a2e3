package container

import (
	"math/bits"
	"math/rand/v2"
)

// A set and a map of numbers that a peer chooses. Whatever it chooses, a call takes little
// time, and memory is within a known bound.

// SparseSet is a set of numbers that grows from 0 up, almost in order: stream ids, of
// which each may be used once (RFC 9000 §2.1). It holds a bit for each number from the
// first that is missing up to the largest. The zero value is empty.
type SparseSet struct {
	floor uint32   // all below it are in the set
	ahead int      // how many are beyond
	words []uint64 // a ring of bits for them: of n in word n/64; its length is a power of two
}

// Has reports whether n is in the set.
func (s *SparseSet) Has(n uint32) bool {
	if n < s.floor {
		return true
	}
	at := n/64 - s.floor/64
	return at < uint32(len(s.words)) && s.word(n)>>(n%64)&1 != 0
}

// Add adds n, which is not in the set. It reports false, and adds nothing, if n is
// more than reach ahead of the first number that is missing.
func (s *SparseSet) Add(n, reach uint32) bool {
	switch {
	case n-s.floor > reach:
		return false
	case n == s.floor && s.ahead == 0:
		s.floor++
		return true
	}
	s.grow(int(n/64-s.floor/64) + 1)
	s.set(n)
	if s.ahead++; n == s.floor {
		s.advance()
	}
	return true
}

// Size returns the memory that the set takes beside the Set itself, in bytes.
func (s *SparseSet) Size() int { return 8 * cap(s.words) }

func (s *SparseSet) word(n uint32) uint64 { return s.words[n/64&uint32(len(s.words)-1)] }

func (s *SparseSet) set(n uint32) { s.words[n/64&uint32(len(s.words)-1)] |= 1 << (n % 64) }

// grow makes the ring n words long, at least.
func (s *SparseSet) grow(n int) {
	if n <= len(s.words) {
		return
	}
	old, first := s.words, s.floor/64
	s.words = make([]uint64, 1<<bits.Len(uint(n-1)))
	for i := range uint32(len(old)) {
		s.words[(first+i)&uint32(len(s.words)-1)] = old[(first+i)&uint32(len(old)-1)]
	}
}

// advance moves floor past the numbers that are in the set, a word at a time.
func (s *SparseSet) advance() {
	for s.ahead > 0 {
		at := s.floor % 64
		n := bits.TrailingZeros64(^(s.word(s.floor) >> at))
		if n == 0 {
			return
		}
		s.words[s.floor/64&uint32(len(s.words)-1)] &^= (1<<n - 1) << at
		s.floor += uint32(n)
		s.ahead -= n
	}
	s.words = nil
}

// SparseMap is an ordered map: a tree with random weights (a treap), which keeps its
// depth small whatever the order in which keys come. Keys are in the order of
// their difference modulo 2^32, and less than 2^31 apart. The zero value is empty.
type SparseMap[V any] struct{ root *node[V] }

type node[V any] struct {
	less, more  *node[V]
	key, weight uint32 // no child has a larger weight
	value       V
}

// child returns where the node of key is, which is not n's.
func (n *node[V]) child(key uint32) **node[V] {
	if int32(key-n.key) < 0 {
		return &n.less
	}
	return &n.more
}

// Empty reports whether the map has no entry.
func (m *SparseMap[V]) Empty() bool { return m.root == nil }

// Get returns the value of key; nil if there is none.
func (m *SparseMap[V]) Get(key uint32) *V {
	n := m.root
	for n != nil && n.key != key {
		n = *n.child(key)
	}
	if n == nil {
		return nil
	}
	return &n.value
}

// Add adds key, which has no entry, and returns its value, the zero value.
func (m *SparseMap[V]) Add(key uint32) *V {
	n := &node[V]{key: key, weight: rand.Uint32()}
	at := &m.root
	for *at != nil && (*at).weight >= n.weight {
		at = (*at).child(key)
	}
	rest := *at
	*at = n
	less, more := &n.less, &n.more
	for rest != nil { // what was there goes to either side of n
		if int32(rest.key-key) < 0 {
			*less, less, rest = rest, &rest.more, rest.more
		} else {
			*more, more, rest = rest, &rest.less, rest.less
		}
	}
	*less, *more = nil, nil
	return &n.value
}

// First returns the first key and its value; nil if the map is empty.
func (m *SparseMap[V]) First() (key uint32, v *V) {
	n := m.root
	if n == nil {
		return 0, nil
	}
	for n.less != nil {
		n = n.less
	}
	return n.key, &n.value
}

// RemoveFirst removes the first entry, which there is.
func (m *SparseMap[V]) RemoveFirst() {
	at := &m.root
	for (*at).less != nil {
		at = &(*at).less
	}
	*at = (*at).more
}

// All calls f with each key and its value, in order.
func (m *SparseMap[V]) All(f func(key uint32, v *V) bool) { m.root.all(f) }

func (n *node[V]) all(f func(key uint32, v *V) bool) bool {
	return n == nil || n.less.all(f) && f(n.key, &n.value) && n.more.all(f)
}
