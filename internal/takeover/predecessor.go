package takeover

import (
	"errors"
	"io"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Predecessor is a process that has handed its sockets over, and still has sessions.
type Predecessor struct {
	feeds   []*Feed       // one for each socket; immutable
	notes   *Pipe         // immutable
	locals  bool          // it understands local addresses of datagrams; immutable
	inherit func(Note)    // is told of sessions that have ended, and of used ids; immutable
	stopped chan struct{} // closed when listen has returned; Predecessors.mu

	mu    sync.RWMutex // guards owned
	owned Owned
}

// apply changes what is known of the sessions of p. It reports false if it has too many.
func (p *Predecessor) apply(n Note) bool {
	if n.Kind == Used || n.Kind == Ended {
		p.inherit(n)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.owned.apply(n)
}

// isDead reports whether the predecessor's process has ended. If it has only given up,
// abort has written a note. It may wait for Timeout.
func (p *Predecessor) isDead() bool {
	stop := time.AfterFunc(Timeout, p.notes.Interrupt)
	defer stop.Stop()
	_, err := p.notes.Read(make([]byte, 64<<10))
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

// read reads what the predecessor tells, until it has ended, or is interrupted.
func (p *Predecessor) read() error {
	message := make([]byte, 64<<10)
	for {
		n, err := p.notes.Read(message)
		if err != nil {
			return err
		}
		for b := message[:n]; len(b) > 0; {
			note, rest, ok := CutNote(b)
			if !ok || !p.apply(note) || note.Kind == Over {
				return io.EOF
			}
			b = rest
		}
	}
}

func (p *Predecessor) close() {
	for _, feed := range p.feeds {
		feed.Close()
	}
	if p.notes != nil {
		p.notes.Close()
	}
}

// Retained are predecessors that a process passes on, or has got.
type Retained []*Predecessor

func (r Retained) close() {
	for _, p := range r {
		p.close()
	}
}

// AppendOwned appends notes of all their sessions.
func (r Retained) AppendOwned(notes []Note) []Note {
	for i, p := range r {
		p.mu.RLock()
		notes = p.owned.appendNotes(notes, uint32(i+1))
		p.mu.RUnlock()
	}
	return notes
}

// KeeperOf returns which of them has a session, or had it and still runs, as Note.Of.
// 0: none of them.
func (r Retained) KeeperOf(addr netip.AddrPort, conv uint32) uint32 {
	for i, p := range r {
		p.mu.RLock()
		_, ok := p.owned.At(addr, conv)
		p.mu.RUnlock()
		if ok {
			return uint32(i + 1)
		}
	}
	return 0
}

// Predecessors are the processes that packets are forwarded to. The zero value is none.
type Predecessors struct {
	Forwarded atomic.Uint64 // packets
	Dropped   atomic.Uint64 // of those, the ones that the process did not read

	all atomic.Pointer[[]*Predecessor] // nil: none; mu to change it

	mu     sync.Mutex
	closed bool
}

// Any reports whether there are some.
func (s *Predecessors) Any() bool { return s.all.Load() != nil }

// list returns all of them. The caller does not change it.
func (s *Predecessors) list() []*Predecessor {
	if all := s.all.Load(); all != nil {
		return *all
	}
	return nil
}

// setLocked makes list all of them.
func (s *Predecessors) setLocked(list []*Predecessor) {
	if len(list) == 0 {
		s.all.Store(nil)
		return
	}
	s.all.Store(&list)
}

// Start makes list all of them, if it has any, and begins to listen to them. After Close
// it closes them.
func (s *Predecessors) Start(list Retained) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		list.close()
		return
	}
	if len(list) == 0 {
		return
	}
	s.setLocked(list)
	for _, p := range list {
		p.notes.Resume()
		p.stopped = make(chan struct{})
		go s.listen(p, p.stopped)
	}
}

// listen follows what p tells, until it has ended. A predecessor that is being passed on,
// and was interrupted for that, is kept.
func (s *Predecessors) listen(p *Predecessor, stopped chan struct{}) {
	defer close(stopped)
	err := p.read()
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(err, os.ErrDeadlineExceeded) && !s.closed {
		return
	}
	s.setLocked(slices.DeleteFunc(slices.Clone(s.list()), func(other *Predecessor) bool { return other == p }))
	p.close()
}

// Pause makes nothing be heard of them until Start. It returns those that have not ended.
func (s *Predecessors) Pause() Retained {
	for _, p := range s.list() {
		s.mu.Lock()
		stopped := p.stopped
		s.mu.Unlock()
		p.notes.Interrupt()
		<-stopped
	}
	return s.list()
}

// forget forwards nothing any more, and closes nothing.
func (s *Predecessors) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all.Store(nil)
}

// Close closes them in the background.
func (s *Predecessors) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	if all := s.all.Load(); all != nil {
		for _, p := range *all {
			p.notes.Interrupt()
		}
	}
}

// Sessions returns the number of their sessions.
func (s *Predecessors) Sessions() (n int) {
	for _, p := range s.list() {
		p.mu.RLock()
		n += p.owned.Len()
		p.mu.RUnlock()
	}
	return n
}
