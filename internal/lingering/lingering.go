// Package lingering bounds how many things are kept open only in case they are still of
// use, such as sockets of ended sessions: there is always room for one more, as the one
// that was kept for longest is given up for it.
package lingering

import (
	"slices"
	"sync"
)

// Most is how many sockets linger at most. One of Part descriptors may be of one.
const (
	Most = 256
	Part = 8
)

// Limit returns how many sockets may linger in a process that may have so many
// descriptors; 0: any number.
func Limit(descriptors int) int {
	if descriptors == 0 {
		return Most
	}
	return min(max(descriptors/Part, 1), Most)
}

// Set is what lingers. The zero value is empty. It is safe for concurrent use.
type Set[T comparable] struct {
	mu  sync.Mutex
	all []T // the one that was added first comes first
}

// Add adds x, unless it is there. If there are more than limit then, it takes out the one
// that was added first, which the caller gives up. ok reports whether it has.
func (s *Set[T]) Add(x T, limit int) (oldest T, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.all, x) {
		s.all = append(s.all, x)
	}
	if len(s.all) <= limit {
		return oldest, false
	}
	return s.takeLocked(), true
}

// Take takes out the one that was added first. ok is false if there is none.
func (s *Set[T]) Take() (oldest T, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) == 0 {
		return oldest, false
	}
	return s.takeLocked(), true
}

func (s *Set[T]) takeLocked() T {
	x := s.all[0]
	s.all = slices.Delete(s.all, 0, 1)
	return x
}

// Remove removes x, if it is there.
func (s *Set[T]) Remove(x T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.all, x); i >= 0 {
		s.all = slices.Delete(s.all, i, i+1)
	}
}
