package takeover

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// life is a random succession of processes on one port. Sessions begin and end, and
// processes hand over or are killed, at random.
type life struct {
	t         *testing.T
	kind      string
	random    *rand.Rand
	processes []*process // those that live, oldest first; the last is the newest
	made      int        // processes
	sessions  map[*session]bool
}

// session is a client that has bytes echoed until stop is closed.
type session struct {
	c     *kcp.Conn
	of    *process
	stop  chan struct{}
	ended chan struct{}
	err   error // why it has ended; after ended
}

// TestLives runs random lives: KCP_TAKEOVER_LIVES, or a few. Sessions of processes that
// were not killed see all their bytes and end in order. Those of killed ones get
// ErrReset. Processes that have handed over end with their last session, and leave
// nothing.
func TestLives(t *testing.T) {
	lives := 1
	if n, err := strconv.Atoi(os.Getenv("KCP_TAKEOVER_LIVES")); err == nil {
		lives = n
	} else if testenv.InFull() {
		lives = 12
	}
	first := rand.Uint64N(1 << 32)
	if s, err := strconv.ParseUint(os.Getenv("KCP_SEED"), 10, 64); err == nil {
		first, lives = s, 1
	}
	for i := range lives {
		seed := first + uint64(i)
		t.Run(fmt.Sprint("KCP_SEED=", seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 0))
			kinds := []string{"plain", "aes-gcm", "tls", "fec", "shards"}
			l := &life{t: t, kind: kinds[random.IntN(len(kinds))], random: random, sessions: make(map[*session]bool)}
			l.run()
		})
	}
}

func (l *life) run() {
	l.t.Log(l.kind)
	l.processes = []*process{launch(l.t, l.kind, "g0", "").ready()}
	steps := 12
	if testenv.InFull() {
		steps = 25
	}
	for range steps {
		switch n := l.random.IntN(10); {
		case n < 4:
			l.open()
		case n < 5:
			l.closeOne()
		case n < 8:
			l.handOver()
		case n < 9:
			time.Sleep(time.Duration(l.random.IntN(100)) * time.Millisecond)
		default:
			l.forget()
			if len(l.processes) > 1 {
				l.kill(l.random.IntN(len(l.processes)))
			}
		}
	}
	for s := range l.sessions {
		l.end(s)
	}
	l.forget()
	testenv.Await(l.t, func() bool { return l.newest().stats().PredecessorSessions == 0 })
}

// names returns the names of the processes, oldest first.
func (l *life) names() (names []string) {
	for _, p := range l.processes {
		names = append(names, p.name)
	}
	return names
}

func (l *life) newest() *process { return l.processes[len(l.processes)-1] }

// open opens a session with the newest process.
func (l *life) open() {
	p := l.newest()
	s := &session{c: dial(l.t, p.addr, l.kind, p.name).Conn, of: p, stop: make(chan struct{}), ended: make(chan struct{})}
	l.sessions[s] = true
	go s.run(l.random.Uint64())
}

// run has bytes echoed.
func (s *session) run(seed uint64) {
	defer close(s.ended)
	random := rand.New(rand.NewPCG(seed, 0))
	for {
		select {
		case <-s.stop:
			s.err = s.c.Close()
			return
		case <-time.After(time.Duration(random.IntN(20)) * time.Millisecond):
		}
		want := testenv.Content(random.Uint64(), 1+random.IntN(1<<random.IntN(18)))
		var writing sync.WaitGroup
		writing.Go(func() { _, _ = s.c.Write(want) })
		err := testenv.Compare(s.c, want)
		writing.Wait()
		if err != nil {
			s.err = err
			return
		}
	}
}

// end ends a session, which must be in order.
func (l *life) end(s *session) {
	close(s.stop)
	<-s.ended
	require.NoError(l.t, s.err, "a session of %s", s.of.name)
	delete(l.sessions, s)
}

// closeOne ends a session.
func (l *life) closeOne() {
	for s := range l.sessions {
		l.end(s)
		return
	}
}

// handOver makes the newest process hand over to another.
func (l *life) handOver() {
	l.made++
	l.t.Logf("%s hands over to g%d", l.newest().name, l.made)
	p := l.newest().handsOver("g" + strconv.Itoa(l.made))
	l.processes = append(l.processes, p)
	l.forget()
}

// forget forgets the processes that have handed over and have no sessions.
func (l *life) forget() {
	var rest []*process
	for i, p := range l.processes {
		used := i == len(l.processes)-1
		for s := range l.sessions {
			used = used || s.of == p
		}
		if used {
			rest = append(rest, p)
		} else {
			p.leaves()
		}
	}
	l.processes = rest
}

// kill kills a process. If it is the newest, the one before it has to take its place, and
// hands over.
func (l *life) kill(i int) {
	p := l.processes[i]
	last := p == l.newest()
	l.t.Logf("%s of %v is killed", p.name, l.names())
	p.kill()
	l.processes = append(l.processes[:i:i], l.processes[i+1:]...)
	for s := range l.sessions {
		if s.of == p {
			<-s.ended
			require.ErrorIs(l.t, s.err, kcp.ErrReset, "a session of %s", p.name)
			delete(l.sessions, s)
		}
	}
	if last {
		l.handOver()
	}
}
