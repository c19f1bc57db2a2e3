package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// heavy are cases that need gigabytes or many seconds and do nothing that
// others of their suite do not.
var heavy = []string{
	"idle/1000", "idle/4000", "idle/16000", "fanin/1000",
	"server/pace-1000", "server/pace-4000", "server/echo-1000", "server/bulk-100", "server/bulk-1000",
	"server/bulk-1000-lowlatency", "server/bulk-100-gcm", "state/state-1000",
}

// fatal ends the test if err is not nil.
func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// quickCases returns the cases to be tested: all but heavy ones, or with -short
// the first, or a small one.
func quickCases(s *suite) []string {
	if s.name == "idle" {
		return []string{"40"}
	}
	if testing.Short() {
		return s.cases[:1]
	}
	return slices.DeleteFunc(slices.Clone(s.cases), func(c string) bool {
		return slices.Contains(heavy, s.name+"/"+c)
	})
}

// TestSuites runs every case of every suite for an instant and looks at what
// figures there are, not at how good they are.
func TestSuites(t *testing.T) {
	for _, name := range suiteNames() {
		s := suites[name]
		for _, c := range quickCases(s) {
			for _, impl := range s.impls {
				if !s.has(c, impl) || testing.Short() && name == "streams" && impl != ours {
					continue // the others take seconds
				}
				t.Run(name+"/"+c+"/"+impl, func(t *testing.T) {
					f, err := s.measure(c, impl, 5*time.Millisecond)
					fatal(t, err)
					checkFigures(t, s, c, impl, f)
				})
			}
		}
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

// checkFigures wants exactly the metrics that s declares for a case of an
// implementation, each a number.
func checkFigures(t *testing.T, s *suite, c, impl string, f figures) {
	t.Helper()
	var want []string
	for _, m := range s.metrics {
		if !s.hasFigure(c, impl, m.name) {
			continue
		}
		want = append(want, m.name)
		if v := f[m.name]; math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			t.Errorf("%s is %v", m.name, v)
		}
		if m.unit == "" {
			t.Errorf("%s has no unit", m.name)
		}
	}
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(f)); !slices.Equal(got, want) {
		t.Errorf("metrics %q, want %q", got, want)
	}
}

func TestUnknownNames(t *testing.T) {
	for _, name := range suiteNames() {
		s := suites[name]
		if _, err := s.measure("no such case", s.impls[0], time.Millisecond); err == nil {
			t.Errorf("%s measures an unknown case", name)
		}
		if _, err := s.measure(s.cases[0], "no such implementation", time.Millisecond); err == nil {
			t.Errorf("%s measures an unknown implementation", name)
		}
	}
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
	args := []string{"-suite", "core", "-cases", "w128", "-json", "-d", "2ms", "-rounds", "2"}
	fatal(t, run(args, &out, io.Discard))
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 4 {
		t.Fatalf("%d lines, want 4:\n%s", len(lines), &out)
	}
	prefixes := []string{
		`{"suite":"core","case":"w128","impl":"kcp","metric":"ns a segment","unit":"ns","value":`,
		`{"suite":"core","case":"w128","impl":"kcp","metric":"allocs","unit":"count","value":`,
		`{"suite":"core","case":"w128","impl":"kcp-go","metric":"ns a segment","unit":"ns","value":`,
		`{"suite":"core","case":"w128","impl":"kcp-go","metric":"allocs","unit":"count","value":`,
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

// TestResults wants a table in Markdown, and a chart of each kind that shows
// what was measured.
func TestResults(t *testing.T) {
	s := &suite{
		name: "s", about: "about", cases: []string{"10", "20"}, impls: []string{ours, kcpGo, "other"},
		metrics: []metric{{"m", "u"}},
		lacks:   func(c, impl string) bool { return impl == "other" && c == "20" },
		charts: []chart{
			{name: "bars", title: "Bars", metric: "m"},
			{name: "lines", title: "Lines", metric: "m", place: func(c string) float64 { return float64(len(c)) }, axis: "x", log: true},
			{name: "cdf", title: "Shares", samples: func(c, impl string) []float64 { return []float64{3, 1, 2} }, unit: "u"},
			{name: "none", title: "None", metric: "m", cases: []string{"30"}},
		},
		measure: func(c, impl string, _ time.Duration) (figures, error) {
			return figures{"m": map[string]float64{ours: 321, kcpGo: 642, "other": 7}[impl]}, nil
		},
	}
	p := plan{cases: s.cases, impls: s.impls, rounds: 2}
	results, err := s.run(p)
	fatal(t, err)
	dir := t.TempDir()
	var table bytes.Buffer
	fatal(t, writeResults(&table, dir, s, p, results))
	for _, want := range []string{
		"| 10 | m | u | less | 321.0 ± 0.0% | 642.0 ± 0.0% | 7.000 ± 0.0% | 2.00 |",
		"| 20 | m | u | less | 321.0 ± 0.0% | 642.0 ± 0.0% |  | 2.00 |",
		"![s-bars](s-bars.svg)", "![s-cdf](s-cdf.svg)",
	} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in\n%s", want, &table)
		}
	}
	for name, want := range map[string]string{"bars": ">642<", "lines": ">Lines<", "cdf": ">kcp-go, 20<"} {
		svg, err := os.ReadFile(filepath.Join(dir, "s-"+name+".svg"))
		if err != nil || !strings.Contains(string(svg), want) {
			t.Errorf("chart %s is without %s: %v", name, want, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "s-none.svg")); err == nil {
		t.Error("a chart of nothing")
	}
}

func TestStatistics(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 2, 3}, 2.5},
	} {
		if got := median(c.values); got != c.want {
			t.Errorf("median of %v is %v, want %v", c.values, got, c.want)
		}
	}
	r := series{ours: {{metricP99: 3, metricGoodput: 3}}, kcpGo: {{metricP99: 6, metricGoodput: 6}}, quicGo: {{metricP99: 9, metricGoodput: 2}}}
	if latency, rate := thanTheBest(metricP99, r), thanTheBest(metricGoodput, r); latency != "2.00" || rate != "0.50" {
		t.Errorf("than the best: %s, %s", latency, rate)
	}
	if got := spread([]float64{9, 10, 12}); got != "15.0%" {
		t.Errorf("spread %s", got)
	}
}
