package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv/life"
	"github.com/arqnet/kcp/internal/testenv/life/ends"
)

// report is what the server's process tells, a line of JSON each.
type report struct {
	Ready   bool // it listens
	Session *life.Session
	Failure string
	Quit    bool // the last: all has ended, and nothing is left
}

// server is the server's process.
type server struct {
	plan    *plan
	l       *kcp.Listener
	pc      net.PacketConn // nil if the listener has its own
	group   *ends.Group    // nil without plan.grouped
	running sync.WaitGroup

	mu      sync.Mutex
	out     *json.Encoder
	apps    []*ends.App
	leaving bool // SIGTERM has come
}

// serve is the main function of the server's process. It ends all when it gets SIGTERM,
// or once its sessions have ended when nobody needs it any more.
func serve(p *plan, port int) error {
	s := &server{plan: p, out: json.NewEncoder(os.Stdout)}
	if err := s.listen(fmt.Sprintf("127.0.0.1:%d", port)); err != nil {
		return err
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	unneeded := make(chan struct{})
	go func() {
		defer close(unneeded)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	if p.grouped {
		s.group = ends.NewGroup(p.way, s.accept)
		if err := s.l.AcceptInto(s.group.Group); err != nil {
			return err
		}
	} else {
		go func() {
			for {
				c, err := s.l.AcceptKCP(context.Background())
				if err != nil {
					return
				}
				s.accept(c).Begin()
			}
		}()
	}
	s.tell(report{Ready: true})
	select {
	case <-term:
		s.terminate()
	case <-unneeded: // those in the backlog are served
		await(func() bool { return s.l.Endpoint().Stats().Sessions == 0 })
	}
	s.quit()
	return nil
}

func (s *server) listen(address string) (err error) {
	cfg := &s.plan.server
	if s.plan.sockets[1] == ownSockets {
		s.l, err = kcp.Listen("udp4", address, cfg)
		return err
	}
	if s.pc, err = net.ListenPacket("udp4", address); err != nil {
		return err
	}
	e, err := kcp.NewEndpoint(wrap(s.plan.sockets[1], s.pc), cfg)
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

// tell tells the client's process, which may be gone.
func (s *server) tell(r report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.out.Encode(r)
}

func (s *server) fail(text string) { s.tell(report{Failure: text}) }

// accept returns the application of a session, which begins.
func (s *server) accept(c *kcp.Conn) *ends.App {
	a := newApp(s.plan, 1, c, s.fail)
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
		<-c.Done()
		a.Wait()
		awaitReceipts(a)
		s.tell(report{Session: a.Session})
	})
	return a
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

// quit waits for the end of all, and looks for what is left.
func (s *server) quit() {
	_ = s.l.Close()
	s.running.Wait()
	if s.group != nil {
		s.group.End()
	}
	await(func() bool { n := s.l.Endpoint().Stats(); return n.Sessions == 0 && n.HalfOpen == 0 && n.Buffered == 0 })
	if n := s.l.Endpoint().Stats(); n.Sessions != 0 || n.HalfOpen != 0 || n.Buffered != 0 {
		s.fail(fmt.Sprintf("left are %d sessions, %d half open, %d bytes", n.Sessions, n.HalfOpen, n.Buffered))
	}
	_ = s.l.Endpoint().Close() // which may be closed already
	if s.pc != nil {
		_ = s.pc.Close()
	}
	if left := goroutines(); len(left) > 0 {
		s.fail("goroutines are left: " + left[0])
	}
	s.tell(report{Quit: true})
}

// newApp returns the application of one end of a session, whose content its conversation
// id selects.
func newApp(p *plan, side int, c *kcp.Conn, fail func(string)) *ends.App {
	s := &life.Session{Name: fmt.Sprintf("seed %d, session %08x", p.seed, c.Conv()), Fail: fail, Mode: p.server.MessageMode, Codes: ends.Codes, Copies: 1 << 20}
	s.Begin()
	return ends.NewApp(s, side, c)
}

// perform takes the steps of an application, whatever happens.
func perform(a *ends.App, steps []life.Step) {
	for _, s := range steps {
		switch s.Op {
		case life.Wait:
			time.Sleep(time.Duration(s.N) * time.Millisecond)
		case life.Fin:
			if s.ID == 0 {
				finish(a)
			}
			a.Do(s)
		case life.Meet: // the end of what the peer writes
			finish(a)
			for ids := []uint32{0}; len(ids) > 0 && a.Conn.Err() == nil; time.Sleep(5 * time.Millisecond) {
				if ids = unread(a, a.Streams()); len(unread(a, []uint32{0})) > 0 {
					ids = append(ids, 0)
				} else {
					finish(a) // streams that have come meanwhile
				}
			}
		default:
			a.Do(s)
		}
	}
}

// finish ends what is written to streams.
func finish(a *ends.App) {
	for _, id := range a.Streams() {
		a.Do(life.Step{End: a.Side, Op: life.Fin, ID: id})
	}
}

// unread returns those streams of some that have not been read to their end.
func unread(a *ends.App, ids []uint32) (all []uint32) {
	for _, id := range ids {
		if _, ended := a.In(id).Read(); ended == "" {
			all = append(all, id)
		}
	}
	return all
}
