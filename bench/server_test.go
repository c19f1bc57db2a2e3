package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestMain is also the processes of the server suite.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		if err := runRole(role, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(2)
	}
	os.Exit(m.Run())
}

// TestServerSmall runs every kind of case of the server suite with few clients.
func TestServerSmall(t *testing.T) {
	cases := []string{"pace-5", "echo-3", "bulk-10", "bulk-3-lowlatency", "bulk-2-gcm", "chatty-3", "starved-2", "open-70", "echo-2/cores=1"}
	if testing.Short() {
		cases = []string{"bulk-10", "open-70"}
	}
	s := suites["server"]
	for _, c := range cases {
		for _, impl := range s.impls {
			if !s.has(c, impl) || testing.Short() && impl != ours && impl != kcpGroup {
				continue
			}
			t.Run(c+"/"+impl, func(t *testing.T) {
				f, err := measureServer(c, impl, 5*time.Millisecond)
				fatal(t, err)
				checkFigures(t, s, c, impl, f)
				if v, ok := f[metricAlive]; ok && v != 1 {
					t.Errorf("alive: %v", v)
				}
			})
		}
	}
}

// TestStateSmall wants the state to arrive, at both kinds of peers, and the server to
// have as many goroutines with more of them.
func TestStateSmall(t *testing.T) {
	s := suites["state"]
	for _, impl := range s.impls {
		var goroutines []float64
		for _, c := range []string{"state-3", "state-40"} {
			f, err := measureState(c, impl, 100*time.Millisecond)
			fatal(t, err)
			checkFigures(t, s, c, impl, f)
			if f[metricDelivered] == 0 || f[metricPackets] < 3 {
				t.Errorf("%s, %s: %v", c, impl, f)
			}
			goroutines = append(goroutines, f[metricServer])
		}
		if goroutines[1] > goroutines[0]+10 {
			t.Errorf("%s: %v goroutines", impl, goroutines)
		}
	}
	for _, c := range []string{"state", "state-0", "state-x", "state-3-nope", "pace-3"} {
		if _, err := parseStateCase(c); err == nil {
			t.Errorf("%q is taken for a case", c)
		}
	}
}

// TestServerCases wants the names of all cases to stand for something.
func TestServerCases(t *testing.T) {
	s := suites["server"]
	for _, c := range slices.Concat(s.cases, s.optional, s.casesOverCores(4)) {
		if _, err := parseServerCase(c); err != nil {
			t.Error(err)
		}
		if !s.has(c, ours) {
			t.Errorf("%s is not measured", c)
		}
		for _, m := range s.metrics {
			if s.hasRow(c, m.name, s.impls) && s.unitOf(c, m.name) == "" {
				t.Errorf("%s: %s has no unit", c, m.name)
			}
		}
	}
	for _, c := range []string{"", "pace", "pace-0", "echo-x", "echo-10-gcm", "bulk-10-nope", "starved-x", "bulk-1/cores=0", "bulk-1/cores="} {
		if _, err := parseServerCase(c); err == nil {
			t.Errorf("%q is taken for a case", c)
		}
	}
	for _, th := range s.thresholds {
		if !s.hasFigure(th.c, th.impl, th.metric) {
			t.Errorf("there is no figure for the threshold %+v", th)
		}
	}
}

// TestServerFailures wants what goes wrong in a process to become an error.
func TestServerFailures(t *testing.T) {
	p := new(clientsProcess)
	job := &serverJob{Impl: kernelTCP, Kind: serverPace, Clients: 3}
	o := order{Do: doPrepare, Job: job, Addr: "127.0.0.1:1", Limit: time.Second}
	if _, err := p.do(o); err == nil || !strings.Contains(err.Error(), "of 3 opened") {
		t.Errorf("nobody listens: %v", err)
	}
	job.Clients = 1 << 30
	if _, err := p.do(o); err == nil || !strings.Contains(err.Error(), "files") {
		t.Errorf("too many files: %v", err)
	}
	if _, err := p.do(order{Do: "nothing"}); err != errOrder {
		t.Errorf("an unknown order: %v", err)
	}
	if _, err := new(serverProcess).do(order{Do: "nothing"}); err != errOrder {
		t.Errorf("an unknown order: %v", err)
	}
	if err := runRole("nobody", strings.NewReader(""), new(bytes.Buffer)); err == nil {
		t.Error("an unknown role is taken")
	}
}

// TestServerChecksContent gives a client an echo of something else, and a
// server's session that ends.
func TestServerChecksContent(t *testing.T) {
	near, far := net.Pipe()
	go func() {
		b := make([]byte, messageSize)
		_, _ = far.Read(b)
		b[20]++
		_, _ = far.Write(b)
	}()
	c := &client{clientStream: near}
	if err := c.exchange(new(echoed)); err != errContent {
		t.Errorf("a wrong echo: %v", err)
	}
	paced := &clientsProcess{begin: time.Now()}
	go func() { _, _ = far.Write(make([]byte, messageSize)) }() // the first is number 1
	if err := paced.readEchoes(c); err != errContent {
		t.Errorf("an echo of nothing: %v", err)
	}
	s := &serverProcess{job: serverJob{Kind: serverEcho}}
	_ = near.Close()
	s.serveSession(far)
	if _, err := s.report(); err == nil || s.ended != 1 {
		t.Errorf("a session that has ended is not reported: %v", err)
	}
}

// TestInParallel wants every call made once, and none after an error.
func TestInParallel(t *testing.T) {
	calls := make([]int, 100)
	fatal(t, inParallel(len(calls), 7, func(i int) error { calls[i]++; return nil }))
	if slices.Min(calls) != 1 || slices.Max(calls) != 1 {
		t.Errorf("calls: %v", calls)
	}
	n := 0
	err := inParallel(100, 1, func(int) error { n++; return context.Canceled })
	if err != context.Canceled || n != 1 {
		t.Errorf("%d calls, %v", n, err)
	}
}

// TestSelectCases wants optional cases by name only, and those over processors
// up to all there are.
func TestSelectCases(t *testing.T) {
	s := &suite{name: "s", cases: []string{"a", "b"}, optional: []string{"long"}, overCores: []string{"a"}}
	for _, c := range []struct {
		list string
		want []string
	}{{"", s.cases}, {"long,a", []string{"a", "long"}}} {
		if got, err := s.selectCases(c.list, false); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: %v, %v", c.list, got, err)
		}
	}
	for n, want := range map[int]string{1: "a/cores=1", 2: "a/cores=1 a/cores=2", 6: "a/cores=1 a/cores=2 a/cores=4 a/cores=6"} {
		if got := strings.Join(s.casesOverCores(n), " "); got != want {
			t.Errorf("%d processors: %s", n, got)
		}
	}
	if _, err := new(suite).selectCases("", true); err == nil {
		t.Error("a suite without cases over processors is taken")
	}
}
