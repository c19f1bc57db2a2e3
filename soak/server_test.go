package soak

import (
	"context"
	"sync"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/testenv/life"
	"github.com/arqnet/kcp/internal/testenv/life/ends"
)

// server is one of a trial.
type server struct {
	*trial
	l       *kcp.Listener
	e       *endpoint   // nil if the listener has its own sockets
	group   *ends.Group // nil without plan.grouped
	running sync.WaitGroup

	mu      sync.Mutex // guards what follows
	apps    []*ends.App
	leaving bool
	killed  bool
	ended   map[string][]*life.Session // before it was killed, by name
}

// serve begins a server.
func (x *trial) serve() (err error) {
	s := &server{trial: x, ended: make(map[string][]*life.Session)}
	if x.plan.own[1] {
		s.l, err = kcp.Listen("udp4", x.addr, &x.plan.configs[1])
	} else if s.e, err = x.endpoint(1, x.addr); err == nil {
		s.l, err = s.e.Listen()
	}
	if err != nil {
		return err
	}
	if x.plan.grouped {
		s.group = ends.NewGroup(x.plan.way, s.accept)
		err = s.l.AcceptInto(s.group.Group)
	} else {
		s.running.Go(func() {
			for {
				c, err := s.l.AcceptKCP(context.Background())
				if err != nil {
					return
				}
				s.accept(c).Begin()
			}
		})
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.servers = append(x.servers, s)
	return err
}

// accept returns the application of a session, which begins.
func (s *server) accept(c *kcp.Conn) *ends.App {
	a := s.app(1, c)
	s.mu.Lock()
	leaving := s.leaving
	s.apps = append(s.apps, a)
	s.mu.Unlock()
	s.running.Go(func() {
		if leaving {
			a.Do(life.Step{End: 1, Op: life.Close})
		} else {
			perform(a, s.plan.steps(c.Conv(), 1))
		}
		awaitEnd(s.T, a)
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.killed {
			s.ended[a.Name] = append(s.ended[a.Name], a.Session)
		}
	})
	return a
}

// kill ends the server without a word to anybody.
func (s *server) kill() {
	s.mu.Lock()
	s.killed = true
	s.mu.Unlock()
	_ = s.e.socket.Close()
	_ = s.e.Close()
}

// terminate closes all that there is, as a server does that is told to leave.
func (s *server) terminate() {
	_ = s.l.Close()
	s.mu.Lock()
	s.leaving = true
	apps := s.apps
	s.mu.Unlock()
	for _, a := range apps {
		a.Do(life.Step{End: 1, Op: life.Close})
	}
}

// quit waits for the end of all, those in the backlog included, and looks for what is left.
func (s *server) quit() {
	testenv.Await(s.T, func() bool { return s.l.Endpoint().Stats().Sessions == 0 })
	_ = s.l.Close()
	s.running.Wait()
	if s.group != nil {
		s.group.End()
	}
	testenv.Await(s.T, func() bool { n := s.l.Endpoint().Stats(); return n.Sessions == 0 && n.HalfOpen == 0 && n.Buffered == 0 })
	_ = s.l.Endpoint().Close() // which may be closed already
	if s.e != nil {
		_ = s.e.socket.Close()
	}
}
