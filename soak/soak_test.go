package soak

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/testenv/life"
	"github.com/arqnet/kcp/internal/testenv/life/ends"
)

var (
	seeds   = flag.Int("seeds", 5, "how many seeds to run")
	first   = flag.Uint64("first", 14, "the first seed")
	workers = flag.Int("workers", 8, "how many seeds run at a time")
)

// roleVariable is the plan's seed and the port, if the binary is the server's process.
const roleVariable = "KCP_SOAK_SERVER"

func TestMain(m *testing.M) {
	flag.Parse()
	var seed uint64
	var port int
	if n, _ := fmt.Sscan(os.Getenv(roleVariable), &seed, &port); n == 2 {
		if err := serve(newPlan(seed), port); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Whatever applications, paths and the ends of processes do: what is read is what was
// written, every call returns, and what it says is true. Nothing is left of a session at
// either end.
func TestSoak(t *testing.T) {
	n := *seeds
	if testing.Short() {
		n = min(n, 3)
	}
	freePort(t) // the runtime opens some descriptors with the first socket
	before := testenv.OpenFiles()
	next := make(chan uint64)
	var running sync.WaitGroup
	for range min(*workers, n) {
		running.Go(func() {
			for seed := range next {
				t.Run(fmt.Sprintf("-first %d -seeds 1", seed), func(t *testing.T) { try(t, newPlan(seed)) })
			}
		})
	}
	for i := range n {
		next <- *first + uint64(i)
	}
	close(next)
	running.Wait()
	if left := goroutines(); len(left) > 0 {
		t.Errorf("goroutines are left, of which the first: %s", left[0])
	}
	await(func() bool { return testenv.OpenFiles() <= before }) // the runtime closes some by itself
	if n := testenv.OpenFiles(); n > before {
		t.Errorf("%d descriptors are open, %d before", n, before)
	}
}

// judge judges a session by what both of its ends have seen.
func judge(s *life.Session, of []*life.Session) {
	best := of[0]
	for _, o := range of { // it was accepted twice if the client moved meanwhile
		if read(o, 1) > 0 && read(best, 1) > 0 && o != best {
			s.Fail(fmt.Sprintf("%s: accepted twice, and %d and %d read", s.Name, read(o, 1), read(best, 1)))
		}
		if read(o, 1) > read(best, 1) {
			best = o
		}
	}
	s.Merge(best, 1)
	for name, f := range s.Flows { // who closes before the end of a stream does not get it all
		if reader := &s.Ends[1-int(name[0]-'a')]; f.Got.Ended != life.EOF && f.Written.Last > 0 {
			reader.Early = true
		}
	}
	s.Check()
}

// read returns how much an end has read.
func read(s *life.Session, side int) (n int) {
	for name, f := range s.Flows {
		if name[0] != byte('a'+side) {
			n += f.Got.Bytes + len(f.Got.Numbers)
		}
	}
	return n
}

// serverProcess is a server's process as the test sees it.
type serverProcess struct {
	cmd    *exec.Cmd
	exited chan struct{}
	stop   func() error // tells that nobody needs it any more

	mu       sync.Mutex
	sessions map[string][]*life.Session
	killed   bool
}

// startServer starts a server's process, which takes the port as soon as it is free.
func startServer(t *testing.T, p *plan, port int) *serverProcess {
	for {
		s := &serverProcess{exited: make(chan struct{}), sessions: make(map[string][]*life.Session)}
		s.cmd = exec.Command(os.Args[0], fmt.Sprintf("-test.short=%v", testing.Short()))
		s.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d", roleVariable, p.seed, port))
		stdin, err := s.cmd.StdinPipe()
		stdout, err2 := s.cmd.StdoutPipe()
		var said strings.Builder
		s.cmd.Stderr = &said
		if err := errors.Join(err, err2, s.cmd.Start()); err != nil {
			t.Error(err)
			return nil
		}
		s.stop = stdin.Close
		in := json.NewDecoder(stdout)
		var r report
		if in.Decode(&r) == nil && r.Ready {
			go s.follow(t, in, &said)
			return s
		}
		if s.cmd.Wait(); !strings.Contains(said.String(), "in use") {
			t.Errorf("the server's process does not begin: %s", &said)
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// follow takes the reports until the process ends.
func (s *serverProcess) follow(t *testing.T, in *json.Decoder, said *strings.Builder) {
	defer close(s.exited)
	quit := false
	for {
		var r report
		if in.Decode(&r) != nil {
			break
		}
		if r.Failure != "" {
			t.Errorf("server: %s", r.Failure)
		}
		s.mu.Lock()
		if r.Session != nil {
			s.sessions[r.Session.Name] = append(s.sessions[r.Session.Name], r.Session)
		}
		quit = quit || r.Quit
		s.mu.Unlock()
	}
	err := s.cmd.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.killed && (err != nil || !quit) {
		t.Errorf("the server's process has ended: %v\n%s", err, said)
	}
}

// kill ends the process without a word to anybody.
func (s *serverProcess) kill() {
	s.mu.Lock()
	s.killed = true
	s.mu.Unlock()
	_ = s.cmd.Process.Kill() // fails if it has ended
	<-s.exited
}

// await waits until something holds, for a minute at most.
func await(holds func() bool) {
	for end := time.Now().Add(time.Minute); !holds() && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
}

// awaitReceipts waits for those of an application whose session has ended.
func awaitReceipts(a *ends.App) {
	await(func() bool {
		for _, id := range append(a.Streams(), 0) {
			if !a.Out(id).Received() {
				return false
			}
		}
		return true
	})
}

// goroutines returns the stacks of the goroutines that are in package kcp still, after
// some time.
func goroutines() (in []string) {
	await(func() bool {
		in = nil
		buf := make([]byte, 1<<20)
		for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(stack, "arqnet/kcp.") {
				in = append(in, stack)
			}
		}
		return len(in) == 0
	})
	return in
}
