package main

import (
	"fmt"
	"net"
	"os"
	"slices"
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
			if f[metricDelivered] == 0 || f[metricPackets] == 0 {
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
