package fair

import (
	"slices"
	"sync"
)

// What is kept open only in case it is still of use is bounded, such as sockets of ended
// sessions: there is always room for one more, as the one that was kept for longest is
// given up for it.

// MostLingering is how many sockets linger at most. One of LingeringPart descriptors may
// be of one.
const (
	MostLingering = 256
	LingeringPart = 8
)

// LingeringLimit returns how many sockets may linger in a process that may have so many
// descriptors; 0: any number.
func LingeringLimit(descriptors int) int {
	if descriptors == 0 {
		return MostLingering
	}
	return min(max(descriptors/LingeringPart, 1), MostLingering)
}

// Lingering is what lingers. The zero value is empty. It is safe for concurrent use.
type Lingering[T comparable] struct {
	mu  sync.Mutex
	all []T // the one that was added first comes first
}

// Add adds x, unless it is there. If there are more than limit then, it takes out the one
// that was added first, which the caller gives up. ok reports whether it has.
func (s *Lingering[T]) Add(x T, limit int) (oldest T, ok bool) {
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
func (s *Lingering[T]) Take() (oldest T, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) == 0 {
		return oldest, false
	}
	return s.takeLocked(), true
}

func (s *Lingering[T]) takeLocked() T {
	x := s.all[0]
	s.all = slices.Delete(s.all, 0, 1)
	return x
}

// Remove removes x, if it is there.
func (s *Lingering[T]) Remove(x T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.all, x); i >= 0 {
		s.all = slices.Delete(s.all, i, i+1)
	}
}
