package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
)

// The two implementations of the ratio column.
const (
	ours  = "kcp"
	kcpGo = "kcp-go"
)

// record is one line of JSON output: the median of one metric.
type record struct {
	Suite  string  `json:"suite"`
	Case   string  `json:"case"`
	Impl   string  `json:"impl"`
	Metric string  `json:"metric"`
	Unit   string  `json:"unit"`
	Value  float64 `json:"value"`
}

// writeJSON writes one line for each figure.
func writeJSON(w io.Writer, s *suite, p plan, results map[string]series) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false) // "kcp<kcp-go" is a name
	for _, c := range p.cases {
		for _, impl := range p.impls {
			for _, m := range s.metrics {
				if !s.hasFigure(c, impl, m.name) {
					continue
				}
				r := record{s.name, c, impl, m.name, s.unitOf(c, m.name), median(results[c].values(impl, m.name))}
				if err := enc.Encode(r); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// writeTable writes a table with a line for each case and metric: the median
// of each implementation with half its range over the rounds, and, where both
// were measured, the ratio of the medians and the range of the rounds' ratios.
func writeTable(w io.Writer, s *suite, p plan, results map[string]series) error {
	fmt.Fprintf(w, "suite %s: %s\n", s.name, s.about)
	fmt.Fprintf(w, "medians over %d rounds of %v\n\n", p.rounds, p.duration)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	head := []string{"case", "metric", "unit"}
	for _, impl := range p.impls {
		head = append(head, impl, "±")
	}
	compare := slices.Contains(p.impls, ours) && slices.Contains(p.impls, kcpGo)
	if compare {
		head = append(head, kcpGo+" / "+ours, "range")
	}
	fmt.Fprintln(t, strings.Join(head, "\t")+"\t")
	for _, c := range p.cases {
		for _, m := range s.metrics {
			if !s.hasRow(c, m.name, p.impls) {
				continue
			}
			row := []string{c, m.name, s.unitOf(c, m.name)}
			for _, impl := range p.impls {
				if !s.hasFigure(c, impl, m.name) {
					row = append(row, "", "")
					continue
				}
				v := results[c].values(impl, m.name)
				row = append(row, number(median(v)), spread(v))
			}
			if compare {
				row = append(row, ratios(results[c].values(kcpGo, m.name), results[c].values(ours, m.name))...)
			}
			fmt.Fprintln(t, strings.Join(row, "\t")+"\t")
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if s.describe != nil {
		fmt.Fprintln(w)
		for _, c := range p.cases {
			fmt.Fprintf(w, "%s: %s\n", c, s.describe(c))
		}
	}
	_, err := fmt.Fprintln(w)
	return err
}

// number formats v with about four digits.
func number(v float64) string {
	switch {
	case v >= 1000:
		return fmt.Sprintf("%.0f", v)
	case v >= 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// spread returns half the range of v in per cent of its median.
func spread(v []float64) string {
	mid := median(v)
	if mid == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 50*(slices.Max(v)-slices.Min(v))/mid)
}

// negligible is what a figure must reach to be divided by: a ratio to a
// residue of the measurement itself says nothing.
const negligible = 0.005

// ratios returns the ratio of the medians of a and b, and the range of the
// ratios of the single rounds.
func ratios(a, b []float64) []string {
	if len(a) == 0 || len(a) != len(b) || slices.Min(b) < negligible {
		return []string{"-", "-"}
	}
	var rounds []float64
	for i := range a {
		rounds = append(rounds, a[i]/b[i])
	}
	return []string{
		fmt.Sprintf("%.2f", median(a)/median(b)),
		fmt.Sprintf("%.2f-%.2f", slices.Min(rounds), slices.Max(rounds)),
	}
}

// writeHeader says what the figures were measured on.
func writeHeader(w io.Writer) error {
	_, err := fmt.Fprintf(w, "cpu:    %s, %d usable\ngo:     %s %s/%s\nkernel: %s\n\n",
		cpuModel(), runtime.GOMAXPROCS(0), runtime.Version(), runtime.GOOS, runtime.GOARCH, kernel())
	return err
}

// cpuModel returns the name of the processor where the system tells it.
func cpuModel() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(info)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// kernel returns the release of the kernel where the system tells it.
func kernel() string {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(release))
}
