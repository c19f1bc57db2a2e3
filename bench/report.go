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

const (
	ours  = "kcp"
	kcpGo = "kcp-go"
)

// rivals are the implementations that the last column compares with.
var rivals = []string{kcpGo, kcpGoSmux, quicGo, kernelTCP}

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
// of each implementation, with half its range if there were several rounds.
func writeTable(w io.Writer, s *suite, p plan, results map[string]series) error {
	fmt.Fprintf(w, "suite %s: %s\n%s\n\n", s.name, s.about, how(s, p))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range tableOf(s, p, results) {
		fmt.Fprintln(t, strings.Join(row, "\t")+"\t")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w)
	return err
}

// tableOf returns the rows of the table of a suite, the head first.
func tableOf(s *suite, p plan, results map[string]series) [][]string {
	head := append([]string{"case", "metric", "unit", "better"}, p.impls...)
	compare := slices.Contains(p.impls, ours) && slices.ContainsFunc(p.impls, func(impl string) bool { return slices.Contains(rivals, impl) })
	if compare {
		head = append(head, "than the best")
	}
	rows := [][]string{head}
	for _, c := range p.cases {
		for _, m := range s.metrics {
			if !s.hasRow(c, m.name, p.impls) {
				continue
			}
			row := []string{c, m.name, s.unitOf(c, m.name), better(m.name)}
			for _, impl := range p.impls {
				cell := ""
				if v := results[c].values(impl, m.name); len(v) > 0 {
					cell = number(median(v))
					if len(v) > 1 {
						cell += " ± " + spread(v)
					}
				}
				row = append(row, cell)
			}
			if compare {
				row = append(row, thanTheBest(m.name, results[c]))
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// thanTheBest returns how many times better ours is than the best of the rivals: above
// 1 it is better. A ratio to a residue of the measurement itself says nothing.
func thanTheBest(metric string, r series) string {
	const negligible = 0.005
	own := r.values(ours, metric)
	var all []float64
	for _, impl := range rivals {
		if v := r.values(impl, metric); len(v) > 0 {
			all = append(all, median(v))
		}
	}
	if len(own) == 0 || len(all) == 0 {
		return ""
	}
	best := slices.Min(all)
	if better(metric) == "more" {
		best = slices.Max(all)
	}
	if median(own) < negligible || best < negligible {
		return "-"
	}
	return fmt.Sprintf("%.2f", improvement(metric, best, median(own)))
}

// number formats v with about four digits.
func number(v float64) string {
	switch {
	case v >= 1000:
		return fmt.Sprintf("%.0f", v)
	case v >= 100:
		return fmt.Sprintf("%.1f", v)
	case v >= 10:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

// spread returns half the range of v in per cent of its median.
func spread(v []float64) string {
	mid := median(v)
	if mid == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 50*(slices.Max(v)-slices.Min(v))/mid)
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
