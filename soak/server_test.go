package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/arqnet/kcp"
)

// order is what the client's process tells the server's, a line of JSON each.
type order struct {
	Conv    uint32 // belongs to
	Session int
	Over    bool // there will be no further Dial
	Report  bool // asks for a report
	Quit    bool
}

// report is what the server's process tells.
type report struct {
	Ready   bool     // it listens
	Record  *record  // of a session that is over
	State   *state   // as was asked for
	Quit    bool     // the last
	Left    []string // goroutines of package kcp after the end of all
	Serving bool     // the end was by SIGTERM
}

// state is what the server holds.
type state struct{ Sessions, HalfOpen, Buffered, Apps int }

// server is the server's process.
type server struct {
	plan    *plan
	life    int
	l       *kcp.Listener
	pc      net.PacketConn // nil if the listener has its own
	grouped *groupServer   // nil without Plan.Group
	log     func(format string, args ...any)

	mu       sync.Mutex
	changed  sync.Cond
	sessions map[uint32]int // by conv
	over     bool           // sessions is complete
	leaving  bool           // SIGTERM has come
	quitting bool           // what ends from now on ends by Endpoint.Close
	apps     []*app
	out      *json.Encoder
	running  sync.WaitGroup
	active   int
}

// serve is the main function of the server's process.
func serve(p *plan, life, port int, log func(string, ...any)) error {
	s := &server{plan: p, life: life, log: log, sessions: make(map[uint32]int), out: json.NewEncoder(os.Stdout)}
	s.changed.L = &s.mu
	if err := s.listen(fmt.Sprintf("127.0.0.1:%d", port)); err != nil {
		return err
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	orders := make(chan order)
	go func() {
		defer close(orders)
		for in := json.NewDecoder(os.Stdin); ; {
			var o order
			if in.Decode(&o) != nil {
				return
			}
			orders <- o
		}
	}()
	if p.Group == "" {
		go s.accept()
	} else if err := s.serveGroup(); err != nil {
		return err
	}
	s.send(report{Ready: true})
	for {
		select {
		case <-term:
			return s.terminate()
		case o, ok := <-orders:
			if !ok {
				return nil // the client's process is gone
			}
			if s.obey(o) {
				return nil
			}
		}
	}
}

func (s *server) listen(address string) (err error) {
	cfg := s.plan.config(s.plan.Server)
	if s.plan.Server.Sockets == ownSockets {
		s.l, err = kcp.Listen("udp4", address, cfg)
		return err
	}
	if s.pc, err = net.ListenPacket("udp4", address); err != nil {
		return err
	}
	e, err := kcp.NewEndpoint(wrap(s.plan.Server.Sockets, s.pc), cfg)
	if err == nil {
		s.l, err = e.Listen()
	}
	return err
}

// wrap hides what sort of socket pc is, if the sessions are to run on any.
func wrap(s sockets, pc net.PacketConn) net.PacketConn {
	if s == plainConn {
		return struct{ net.PacketConn }{pc}
	}
	return pc
}

func (s *server) send(r report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.out.Encode(r) // a client's process that is gone shows on the other pipe
}

// obey does what the client's process says, and reports whether that was all.
func (s *server) obey(o order) (quit bool) {
	switch {
	case o.Report:
		n := s.l.Stats()
		s.mu.Lock()
		active := s.active
		s.mu.Unlock()
		if s.grouped != nil {
			active = s.grouped.active()
		}
		s.send(report{State: &state{n.Sessions, n.HalfOpen, n.Buffered, active}})
	case o.Quit:
		_ = s.l.Close() // the endpoint's Close is the one that counts
		s.quit(false)
		return true
	default:
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.over = s.over || o.Over; !o.Over {
			s.sessions[o.Conv] = o.Session
		}
		s.changed.Broadcast()
	}
	return false
}

func (s *server) accept() {
	for {
		c, err := s.l.AcceptKCP(context.Background())
		if err != nil {
			return
		}
		s.mu.Lock()
		s.active++
		s.mu.Unlock()
		s.running.Go(func() { s.handle(c) })
	}
}

// handle runs the application of an accepted session.
func (s *server) handle(c *kcp.Conn) {
	s.mu.Lock()
	session, known := s.sessions[c.Conv()]
	for !known && !s.over {
		s.changed.Wait()
		session, known = s.sessions[c.Conv()]
	}
	steps := []step{{Op: readAny}, {Op: closing}}
	if !known {
		session = -1
	} else {
		steps = s.plan.Sessions[session].Server
	}
	a := newApp(s.plan, true, session, s.life, c, func(format string, args ...any) {
		s.log("  server %d, session %d: %s", s.life, session, fmt.Sprintf(format, args...))
	})
	s.apps = append(s.apps, a)
	if s.leaving {
		s.running.Go(a.terminate)
	}
	s.mu.Unlock()
	a.log("accepted %08x", c.Conv())
	a.run(steps)
	a.leaving.Wait()
	a.awaitReceipts(slack)
	r := a.record()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active--; !s.quitting {
		_ = s.out.Encode(report{Record: &r})
	}
}

// terminate closes all that there is, as a server does that is told to leave.
func (s *server) terminate() error {
	s.log("  server %d: SIGTERM", s.life)
	if err := s.l.Close(); err != nil {
		return err
	}
	s.mu.Lock()
	s.over, s.leaving = true, true
	s.changed.Broadcast()
	apps := slices.Clone(s.apps)
	s.mu.Unlock()
	var closing sync.WaitGroup
	for _, a := range apps {
		closing.Go(a.terminate)
	}
	closing.Wait()
	if s.grouped != nil {
		s.grouped.terminate()
	}
	s.running.Wait()
	s.quit(true)
	return nil
}

// quit closes the endpoint and tells what is left.
func (s *server) quit(serving bool) {
	s.mu.Lock()
	s.quitting = true
	apps := slices.Clone(s.apps)
	s.mu.Unlock()
	for _, a := range apps {
		if r := a.record(); !r.Closed {
			s.send(report{Record: &r})
		}
	}
	if s.grouped != nil {
		s.grouped.quit()
	}
	_ = s.l.Endpoint().Close() // which may be closed already
	if s.pc != nil {
		_ = s.pc.Close()
	}
	s.send(report{Quit: true, Left: awaitNoGoroutines(slack), Serving: serving})
}

// awaitNoGoroutines returns the goroutines of package kcp that are still there
// after some time.
func awaitNoGoroutines(limit time.Duration) (left []string) {
	for end := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		if left = goroutines(); len(left) == 0 || time.Now().After(end) {
			return left
		}
	}
}

// goroutines returns the stacks of the goroutines that are in package kcp.
func goroutines() (in []string) {
	buf := make([]byte, 1<<20)
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(stack, "arqnet/kcp.") {
			in = append(in, stack)
		}
	}
	return in
}
