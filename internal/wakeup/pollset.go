package wakeup

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/arqnet/kcp/internal/container"
)

// PollSet keeps the members of a poll group, such as the sessions of one goroutine, and
// gives those turns that may have events. It decides who takes the events: a call that
// waits, or a handler. M is the type of members. Init must be called before the other
// methods, which are safe for concurrent use. They call nothing of the members', and take
// no other lock.
type PollSet[M any] struct {
	place func(*M) *PollPlace[M]
	wake  chan struct{} // capacity 1: rouses a call that blocks in Sleep
	done  chan struct{} // closed by Close

	mu       sync.Mutex // guards the fields below
	members  container.List[M]
	ready    container.List[M] // members that may have an event, in the order of their turns
	counted  int               // members, except for those with PollPlace.Uncounted
	sleeping bool              // a call blocks in Sleep
	mode     PollMode
	handling bool // a goroutine calls the handler, or is about to
	closed   bool
}

// PollPlace is the place of a member in a PollSet, which alone uses it.
type PollPlace[M any] struct {
	Uncounted      bool // Len leaves it out; set before Add
	members, ready container.Links[M]
}

func (p *PollPlace[M]) count() int {
	if p.Uncounted {
		return 0
	}
	return 1
}

// PollMode is how the events of a set are taken.
type PollMode uint8

const (
	Idle    PollMode = iota // not at the moment
	Waits                   // by one call that waits
	Handles                 // by a handler, for good
)

// ErrInUse says that events are taken in another way.
var ErrInUse = errors.New("the set is in use")

// Init prepares an empty set. place returns the PollPlace of a member.
func (s *PollSet[M]) Init(place func(*M) *PollPlace[M]) {
	s.place, s.wake, s.done = place, make(chan struct{}, 1), make(chan struct{})
}

func (s *PollSet[M]) inMembers(m *M) *container.Links[M] { return &s.place(m).members }
func (s *PollSet[M]) inReady(m *M) *container.Links[M]   { return &s.place(m).ready }

// Add makes m a member. It reports false if the set is closed.
func (s *PollSet[M]) Add(m *M) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.counted += s.place(m).count()
	s.members.Add(s.inMembers, m, false)
	return true
}

// Remove takes a member out, unless it is out already.
func (s *PollSet[M]) Remove(m *M) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeLocked(m)
}

func (s *PollSet[M]) removeLocked(m *M) {
	if s.inMembers(m).In() {
		s.counted -= s.place(m).count()
	}
	s.members.Remove(s.inMembers, m)
	s.ready.Remove(s.inReady, m)
}

// Len returns the number of members that count.
func (s *PollSet[M]) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counted
}

// Close closes the set, and returns the members, which are out. Calls in Sleep
// return. It fails with net.ErrClosed on a closed set.
func (s *PollSet[M]) Close() (members []*M, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, net.ErrClosed
	}
	s.closed = true
	close(s.done)
	for m := s.members.First(); m != nil; m = s.members.First() {
		s.removeLocked(m)
		members = append(members, m)
	}
	return members, nil
}

// Enter begins to take events in a way. Its errors are net.ErrClosed and ErrInUse.
func (s *PollSet[M]) Enter(mode PollMode) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	if s.mode != Idle {
		return ErrInUse
	}
	s.mode = mode
	return nil
}

// Leave ends what Enter has begun.
func (s *PollSet[M]) Leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = Idle
}

// Push gives a member a turn: after the others, or as the next. It reports whether
// Attend must follow. It does nothing for one that is out.
func (s *PollSet[M]) Push(m *M, first bool) (attend bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.inMembers(m).In() {
		return false
	}
	s.ready.Add(s.inReady, m, first)
	return s.sleeping || s.mode == Handles && !s.handling
}

// Attend wakes a call in Sleep if there is something for it. It reports whether the
// handler is to be called instead.
func (s *PollSet[M]) Attend() (handles bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sleeping && s.ready.First() != nil {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	return s.mode == Handles
}

// First returns the member whose turn it is; nil: none.
func (s *PollSet[M]) First() *M {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready.First()
}

// Next ends the turn of the member that First returns, and returns it.
func (s *PollSet[M]) Next() *M {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.ready.First()
	if m != nil {
		s.ready.Remove(s.inReady, m)
	}
	return m
}

// Handling reports whether the calling goroutine is to call the handler: there are
// turns, and no other goroutine does. goesOn says that it has done so.
func (s *PollSet[M]) Handling(goesOn bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handling && !goesOn {
		return false // that goroutine goes on until there are no more turns
	}
	s.handling = s.mode == Handles && !s.closed && s.ready.First() != nil
	return s.handling
}

// Sleep waits until there is a turn. It returns ctx.Err() if ctx is done first, and
// net.ErrClosed if the set is closed; if it is closed meanwhile, the next call
// does. woken, which may be nil, is called without any lock after the wait. One call at
// a time may sleep.
func (s *PollSet[M]) Sleep(ctx context.Context, woken func()) error {
	s.mu.Lock()
	switch {
	case s.closed:
		s.mu.Unlock()
		return net.ErrClosed
	case s.ready.First() != nil:
		s.mu.Unlock()
		return nil
	}
	s.sleeping = true
	s.mu.Unlock()
	var err error
	select {
	case <-s.wake:
		if woken != nil {
			woken()
		}
	case <-s.done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sleeping = false
	return err
}
