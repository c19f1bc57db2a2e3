package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
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

// fatal ends the test if err is not nil.
func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// quickCases returns the cases to be tested: those that need gigabytes or many seconds
// are smaller. With -short it is the first, or a small one.
func quickCases(s *suite) []string {
	cases := s.cases
	switch s.name {
	case "idle":
		return []string{"40"}
	case "server":
		cases = []string{"bulk-10", "pace-5", "echo-3", "chatty-3", "starved-2"}
	}
	if testing.Short() {
		return cases[:1]
	}
	return cases
}

// TestSuites runs every case of every suite for an instant and looks at what
// figures there are, not at how good they are.
func TestSuites(t *testing.T) {
	for _, name := range suiteNames() {
		s := suites[name]
		found := map[string]bool{}
		for _, c := range quickCases(s) {
			for _, impl := range s.impls {
				if !s.has(c, impl) || testing.Short() && name == "streams" && impl != ours {
					continue // the others take seconds
				}
				t.Run(name+"/"+c+"/"+impl, func(t *testing.T) {
					f, err := s.measure(c, impl, 5*time.Millisecond)
					fatal(t, err)
					if len(f) == 0 {
						t.Error("no figures")
					}
					for metric, v := range f {
						found[metric] = true
						if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
							t.Errorf("%s is %v", metric, v)
						}
					}
				})
			}
		}
		for _, m := range s.metrics {
			if !found[m.name] && !testing.Short() && m.name != metricWait && m.name != metricMessage {
				t.Errorf("%s: nothing has %s", name, m.name)
			}
			delete(found, m.name)
		}
		if len(found) > 0 {
			t.Errorf("%s: figures of %v are in no table", name, found)
		}
	}
}

// TestRecording runs a row of a recorded link, with all implementations.
func TestRecording(t *testing.T) {
	file := t.TempDir() + "/a.down"
	fatal(t, os.WriteFile(file, []byte("20 0 3\n"), 0o600))
	var out bytes.Buffer
	fatal(t, run([]string{"-suite", "paths", "-recordings", file, "-cases", "recorded-a.down", "-d", "1ms", "-json"}, &out, io.Discard))
	for _, m := range []string{metricGoodput, metricWait, metricMessage} {
		for _, impl := range suites["paths"].impls {
			has := strings.Contains(out.String(), `"case":"recorded-a.down","impl":"`+impl+`","metric":"`+m+`"`)
			if want := impl != kcpGo || m != metricMessage; has != want {
				t.Errorf("%s of %s: %v in\n%s", m, impl, has, &out)
			}
		}
	}
	if err := run([]string{"-recordings", file + "x"}, io.Discard, io.Discard); err == nil {
		t.Error("a file that does not exist is accepted")
	}
}

// TestRope wants every way to garble a stream to be found.
func TestRope(t *testing.T) {
	r := newRope()
	stream := func(from, n int) []byte { // more than a period, in pieces
		var b []byte
		for n > 0 {
			m := min(n, r.period)
			b = append(b, r.at(uint64(from), m)...)
			from, n = from+m, n-m
		}
		return b
	}
	good := stream(100_000, 300_000)
	fatal(t, r.check(100_000, good))
	changed := bytes.Clone(good)
	changed[222_222] ^= 1
	for name, b := range map[string][]byte{
		"changed": changed,
		"lost":    slices.Concat(good[:1376], good[2*1376:]),
		"doubled": slices.Concat(good[:1376], good),
		"swapped": slices.Concat(good[1376:2*1376], good[:1376]),
	} {
		if err := r.check(100_000, b); !errors.Is(err, errContent) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestUnknownNames(t *testing.T) {
	for _, args := range [][]string{
		{"-suite", "nope"}, {"-suite", ","}, {"-suite", "core", "-cases", "nope"},
		{"-suite", "core", "-peers", "nope"}, {"-rounds", "0"}, {"-d", "-1s"}, {"core"},
	} {
		if err := run(args, io.Discard, io.Discard); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}

// TestJSON wants one object a line with exactly the documented fields, in the
// documented order.
func TestJSON(t *testing.T) {
	var out bytes.Buffer
	fatal(t, run([]string{"-suite", "core", "-cases", "w128", "-json", "-d", "2ms", "-rounds", "2"}, &out, io.Discard))
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	prefixes := []string{
		`{"suite":"core","case":"w128","impl":"kcp","metric":"ns a segment","unit":"ns","value":`,
		`{"suite":"core","case":"w128","impl":"kcp","metric":"allocs","unit":"count","value":`,
		`{"suite":"core","case":"w128","impl":"kcp-go","metric":"ns a segment","unit":"ns","value":`,
		`{"suite":"core","case":"w128","impl":"kcp-go","metric":"allocs","unit":"count","value":`,
	}
	if len(lines) != len(prefixes) {
		t.Fatalf("%d lines:\n%s", len(lines), &out)
	}
	for i, line := range lines {
		if !strings.HasPrefix(line, prefixes[i]) {
			t.Errorf("line %q does not begin with %q", line, prefixes[i])
		}
		var object map[string]any
		fatal(t, json.Unmarshal([]byte(line), &object))
		if _, ok := object["value"].(float64); !ok || len(object) != 6 {
			t.Errorf("line %q has other fields", line)
		}
	}
}

// TestTable wants medians, their ranges, and how much better ours is.
func TestTable(t *testing.T) {
	s := &suite{metrics: []metric{{metricP99, "ms"}, {metricGoodput, "MB/s"}}}
	p := plan{cases: []string{"10", "20"}, impls: []string{ours, kcpGo, quicGo}}
	results := map[string]series{
		"10": {ours: {{metricP99: 3, metricGoodput: 3}}, kcpGo: {{metricP99: 6, metricGoodput: 6}}, quicGo: {{metricP99: 9, metricGoodput: 2}}},
		"20": {ours: {{metricP99: 9}, {metricP99: 10}, {metricP99: 12}}, kcpGo: {{metricP99: 0}}},
	}
	want := [][]string{
		{"case", "metric", ours, kcpGo, quicGo, "times better"},
		{"10", "p99, ms", "3.000", "6.000", "9.000", "2.00"},
		{"10", "goodput, MB/s", "3.000", "6.000", "2.000", "0.50"},
		{"20", "p99, ms", "10.00 ± 15.0%", "0.000", "", "-"},
	}
	if got := tableOf(s, p, results, true); !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestGoals wants a case, an implementation and a metric for each goal, and the exit
// status to tell of those that are missed.
func TestGoals(t *testing.T) {
	for _, name := range suiteNames() {
		s := suites[name]
		for _, g := range s.goals {
			known := slices.Contains(s.cases, g.c) && slices.Contains(s.cases, cmp.Or(g.ofCase, g.c)) &&
				slices.Contains(s.impls, g.impl) && slices.Contains(s.impls, cmp.Or(g.of, g.impl))
			if !known || !slices.ContainsFunc(s.metrics, func(m metric) bool { return m.name == g.metric }) {
				t.Errorf("%s: there is no figure for %+v", name, g)
			}
		}
	}
	s := suites["core"]
	defer func() { s.goals = nil }()
	s.goals = []goal{
		{c: "w128", impl: ours, metric: metricTime, max: 0.001},
		{c: "w128", impl: ours, metric: metricTime, min: 0.9, max: 1.1, of: ours},
	}
	var out bytes.Buffer
	err := run([]string{"-suite", "core", "-cases", "w128", "-peers", ours, "-d", "1ms", "-rounds", "1", "-check"}, io.Discard, &out)
	if err == nil || !strings.Contains(out.String(), "MISSED core w128 kcp ns") || !strings.Contains(out.String(), "ok     core w128 kcp ns") {
		t.Errorf("%v\n%s", err, &out)
	}
}

// TestServerChecksContent gives a client an echo of something else, and a
// server's session that ends.
func TestServerChecksContent(t *testing.T) {
	near, far := net.Pipe()
	p := &clientsProcess{begin: time.Now()}
	go func() {
		b := make([]byte, messageSize)
		_, _ = far.Read(b)
		b[8]++
		_, _ = far.Write(b)
	}()
	c := &client{clientStream: near}
	if err := p.exchange(c); !errors.Is(err, errContent) {
		t.Errorf("a wrong echo: %v", err)
	}
	s := &serverProcess{job: serverJob{Kind: serverEcho}}
	_ = near.Close()
	if err := s.converse(far); err == nil {
		t.Error("a session that has ended is not reported")
	}
}
