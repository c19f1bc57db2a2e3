package soak

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"
)

// The test binary is the server's and the client's program too: this variable
// of the environment says which.
const roleVariable = "KCP_SOAK_ROLE"

// child returns a command that runs this binary in another role.
func child(role string, args ...any) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"="+role+" "+fmt.Sprint(args...))
	cmd.Stderr = os.Stderr
	return cmd
}

// serverProcess is a server's process as the client's sees it.
type serverProcess struct {
	life   int
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	exited chan struct{} // closed after the last report

	mu      sync.Mutex
	changed sync.Cond
	ready   bool
	records []record
	state   *state
	quit    *report
	err     error // of the process's end
	killed  bool
}

// startServer starts a server's process and waits until it listens.
func startServer(p *plan, life, port int, began time.Time) (*serverProcess, error) {
	s := &serverProcess{life: life, exited: make(chan struct{})}
	s.changed.L = &s.mu
	s.cmd = child("server", p.Seed, " ", life, " ", port, " ", began.UnixNano())
	var err error
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go s.read(stdout)
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.ready && s.err == nil {
		s.changed.Wait()
	}
	return s, s.err
}

// read takes the reports until the process ends.
func (s *serverProcess) read(stdout io.Reader) {
	defer close(s.exited)
	for in := json.NewDecoder(stdout); ; {
		var r report
		if in.Decode(&r) != nil {
			break
		}
		s.mu.Lock()
		s.ready = s.ready || r.Ready
		if r.Record != nil {
			s.records = append(s.records, *r.Record)
		}
		if r.State != nil {
			s.state = r.State
		}
		if r.Quit {
			s.quit = &r
		}
		s.changed.Broadcast()
		s.mu.Unlock()
	}
	err := s.cmd.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err = err; err == nil {
		s.err = errEnded
	}
	s.changed.Broadcast()
}

var errEnded = errors.New("the server's process has ended")

// order tells the process something. One that is gone does not hear it.
func (s *serverProcess) order(o order) {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = s.stdin.Write(append(b, '\n'))
}

// report asks the process what it holds. It is nil if the process does not say.
func (s *serverProcess) report() *state {
	s.mu.Lock()
	s.state = nil
	s.mu.Unlock()
	s.order(order{Report: true})
	give := time.AfterFunc(slack, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.state = &state{Sessions: -1}
		s.changed.Broadcast()
	})
	defer give.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.state == nil && s.err == nil {
		s.changed.Wait()
	}
	if s.state != nil && s.state.Sessions < 0 {
		return nil
	}
	return s.state
}

// kill ends the process without a word to anybody.
func (s *serverProcess) kill() {
	s.mu.Lock()
	s.killed = true
	s.mu.Unlock()
	_ = s.cmd.Process.Kill() // fails if it has ended
	<-s.exited
}

// terminate asks the process to end.
func (s *serverProcess) terminate() {
	if s.cmd.Process.Signal(syscall.SIGTERM) != nil { // not on every system
		s.kill()
	}
}

// wait reports whether the process ends in time.
func (s *serverProcess) wait(limit time.Duration) bool {
	select {
	case <-s.exited:
		return true
	case <-time.After(limit):
		return false
	}
}

// seen returns what the process has reported of sessions.
func (s *serverProcess) seen() []record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.records)
}

// end returns the last report, nil if there was none, and whether that is as it
// should be.
func (s *serverProcess) end() (last *report, killed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.quit, s.killed
}
