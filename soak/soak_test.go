package soak

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	seeds   = flag.Int("seeds", 5, "how many seeds to run")
	first   = flag.Uint64("first", 14, "the first seed")
	one     = flag.Uint64("seed", 0, "run this seed alone, and tell all that happens")
	workers = flag.Int("workers", 8, "how many seeds run at a time")
)

// TestMain lets the binary be the server's and the client's process too.
func TestMain(m *testing.M) {
	role, arguments, _ := strings.Cut(os.Getenv(roleVariable), " ")
	if role == "" {
		os.Exit(m.Run())
	}
	if err := playRole(role, arguments); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func playRole(role, arguments string) error {
	var seed uint64
	var life, port int
	var origin int64
	var log lockedLog
	switch role {
	case "server":
		if _, err := fmt.Sscan(arguments, &seed, &life, &port, &origin); err != nil {
			return err
		}
		log.start = time.Unix(0, origin)
		return serve(newPlan(seed), life, port, log.printf)
	case "client":
		if _, err := fmt.Sscan(arguments, &seed); err != nil {
			return err
		}
		p := newPlan(seed)
		log.start = time.Now()
		log.printf("%v", p)
		return json.NewEncoder(os.Stdout).Encode(try(p, log.start, log.printf))
	}
	return fmt.Errorf("no such role: %s", role)
}

// lockedLog writes what happens to stderr.
type lockedLog struct {
	mu    sync.Mutex
	start time.Time
}

func (l *lockedLog) printf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(os.Stderr, "%8.3f %s\n", time.Since(l.start).Seconds(), fmt.Sprintf(format, args...))
}

// Whatever applications, paths and the ends of processes do: what is read is
// what was written, every call returns, and what it says is true. Nothing is
// left of a session at either end.
func TestSoak(t *testing.T) {
	if *one != 0 {
		r, _ := runSeed(*one, true)
		for _, n := range r.Notes {
			t.Logf("note: %s", n)
		}
		for _, f := range r.Failures {
			t.Error(f)
		}
		return
	}
	n := *seeds
	if testing.Short() {
		n = min(n, 2)
	}
	s := soak{t: t, total: n, began: time.Now(), kinds: make(map[string]int)}
	next := make(chan uint64)
	var running sync.WaitGroup
	for range min(*workers, n) {
		running.Go(func() {
			for seed := range next {
				r, timeline := runSeed(seed, false)
				s.add(r, timeline)
			}
		})
	}
	for i := range n {
		next <- *first + uint64(i)
	}
	close(next)
	running.Wait()
	s.summarize()
}

// runSeed runs a seed in a process of its own, of which it returns what it wrote
// meanwhile.
func runSeed(seed uint64, tell bool) (r result, timeline []byte) {
	var out, said bytes.Buffer
	cmd := child("client", seed)
	cmd.Stdout, cmd.Stderr = &out, &said
	if tell {
		cmd.Stderr = os.Stderr
	}
	if err := cmd.Start(); err != nil {
		return result{Seed: seed, Failures: []string{err.Error()}}, nil
	}
	p := newPlan(seed)
	// More than all bounds together: then the client's process itself hangs.
	limit := 2*p.callBound() + 2*p.idleBound() + 10*slack
	defer time.AfterFunc(limit, func() { _ = cmd.Process.Kill() }).Stop()
	err := cmd.Wait()
	if jsonErr := json.Unmarshal(out.Bytes(), &r); err != nil || jsonErr != nil {
		r = result{Seed: seed, Failures: []string{fmt.Sprintf("the client's process ended without a result: %v, %v", err, jsonErr)}}
	}
	return r, said.Bytes()
}

// soak is what the seeds have brought so far.
type soak struct {
	t     *testing.T
	total int
	began time.Time

	mu       sync.Mutex
	done     int
	notes    int
	sessions int
	bytes    int64
	failed   []uint64
	kinds    map[string]int // of failures
	told     time.Time
}

func (s *soak) add(r result, timeline []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done++
	s.sessions += r.Sessions
	s.bytes += r.Bytes
	s.notes += len(r.Notes)
	for _, n := range r.Notes {
		s.t.Logf("seed %d, a note: %s", r.Seed, n)
	}
	for _, f := range r.Failures {
		s.kinds[kind(f)]++
	}
	if len(r.Failures) > 0 {
		s.failed = append(s.failed, r.Seed)
		s.t.Errorf("seed %d:\n\t%s\nWhat happened:\n%s", r.Seed, strings.Join(r.Failures, "\n\t"), timeline)
	}
	if time.Since(s.told) > 10*time.Second {
		s.told = time.Now()
		s.t.Logf("%d of %d seeds in %v, %d failed", s.done, s.total, time.Since(s.began).Round(time.Second), len(s.failed))
	}
}

func (s *soak) summarize() {
	slices.Sort(s.failed)
	s.t.Logf("%d seeds in %v, %d sessions, %.1f MB compared, %d notes of rough paths, %d seeds failed",
		s.done, time.Since(s.began).Round(time.Second), s.sessions, float64(s.bytes)/1e6, s.notes, len(s.failed))
	for _, k := range slices.Sorted(maps.Keys(s.kinds)) {
		s.t.Logf("%4d times: %s", s.kinds[k], k)
	}
	for _, seed := range s.failed {
		s.t.Logf("repeat with: go test ./soak -v -seed %d   # on %s/%s", seed, runtime.GOOS, runtime.GOARCH)
	}
}

// kind returns a failure without what tells it from others of its kind.
func kind(failure string) string {
	first, _, _ := strings.Cut(failure, "\n")
	return figures.ReplaceAllString(first, "N")
}

var figures = regexp.MustCompile(`[0-9][0-9a-z.]*( \([^)]*\))?`)
