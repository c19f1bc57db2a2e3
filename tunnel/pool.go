package tunnel

import (
	"context"
	"slices"
	"sync"
)

// pool holds the sessions of a client, at most one with each server.
type pool struct {
	mu       sync.Mutex
	sessions []*clientSession
	changed  chan struct{} // closed when a session is added; nil: nobody waits
}

// add adds a session.
func (p *pool) add(s *clientSession) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sessions = append(p.sessions, s)
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// remove removes a session.
func (p *pool) remove(s *clientSession) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sessions = slices.DeleteFunc(p.sessions, func(other *clientSession) bool { return other == s })
}

// all returns the sessions.
func (p *pool) all() []*clientSession {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.sessions)
}

// replaced reports whether there is another session on the way of s.
func (p *pool) replaced(s *clientSession) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.sessions, func(other *clientSession) bool {
		return other != s && other.way == s.way && !other.isLeaving()
	})
}

// surplus returns the oldest session on the way of s that the server wants to end, if
// there are more than most of them, or nil.
func (p *pool) surplus(s *clientSession, most int) (oldest *clientSession) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, other := range p.sessions {
		if other.way == s.way && other.isLeaving() {
			if n++; oldest == nil {
				oldest = other
			}
		}
	}
	if n <= most {
		return nil
	}
	return oldest
}

// pick returns the healthy session with the fewest connections, or any if none is
// healthy. If there is none at all it waits, and returns the error of ctx.
func (p *pool) pick(ctx context.Context, not []*clientSession) (*clientSession, error) {
	for {
		p.mu.Lock()
		best, waiting := p.best(not), p.changed
		if best == nil && waiting == nil {
			waiting = make(chan struct{})
			p.changed = waiting
		}
		p.mu.Unlock()
		if best != nil {
			return best, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-waiting:
		}
	}
}

// best returns the session to take, or nil. The caller holds p.mu.
func (p *pool) best(not []*clientSession) *clientSession {
	var best *clientSession
	var bestRank int
	for _, s := range p.sessions {
		if slices.Contains(not, s) {
			continue
		}
		rank := 3
		if len(p.sessions) > 1 {
			rank = s.rank()
		}
		if best == nil || rank > bestRank || rank == bestRank && s.active.Load() < best.active.Load() {
			best, bestRank = s, rank
		}
	}
	return best
}

// rank returns how willingly a session is taken: not if the server does not answer, rather
// another one than what is to end, and rather one over UDP than one over TCP.
func (s *clientSession) rank() int {
	switch {
	case !s.healthy():
		return 0
	case s.isLeaving():
		return 1
	case s.transport() == "tcp":
		return 2
	}
	return 3
}

// over reports whether there is a session on a way over a transport, and whether the
// server answers on one of them.
func (p *pool) over(w way, transport string) (there, healthy bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sessions {
		if s.way == w && s.transport() == transport {
			there, healthy = true, healthy || s.healthy()
		}
	}
	return there, healthy
}

// healthy reports whether the server answers.
func (s *clientSession) healthy() bool {
	return s.conn.Err() == nil && !s.conn.Figures().Unanswered
}
