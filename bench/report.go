package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
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
	for _, c := range p.cases {
		for _, impl := range p.impls {
			for _, m := range s.metrics {
				v := results[c].values(impl, m.name)
				if len(v) == 0 {
					continue
				}
				if err := enc.Encode(record{s.name, c, impl, m.name, m.unit, median(v)}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// writeTable writes a table with a line for each case and metric.
func writeTable(w io.Writer, s *suite, p plan, results map[string]series) error {
	fmt.Fprintf(w, "suite %s: %s\n%s\n\n", s.name, s.about, how(s, p))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range tableOf(s, p, results, true) {
		fmt.Fprintln(t, strings.Join(row, "\t")+"\t")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w)
	return err
}

// tableOf returns the rows of the table of a suite, the head first: the median of
// each implementation, and half its range if that is wanted and known.
func tableOf(s *suite, p plan, results map[string]series, ranges bool) [][]string {
	head := append([]string{"case", "metric"}, p.impls...)
	compare := slices.Contains(p.impls, ours) && slices.ContainsFunc(p.impls, func(impl string) bool { return slices.Contains(rivals, impl) })
	if compare {
		head = append(head, "times better")
	}
	rows := [][]string{head}
	for _, c := range p.cases {
		for _, m := range s.metrics {
			row, any := []string{c, m.name + ", " + m.unit}, false
			for _, impl := range p.impls {
				cell := ""
				if v := results[c].values(impl, m.name); len(v) > 0 {
					cell, any = number(median(v)), true
					if ranges && len(v) > 1 {
						cell += " ± " + spread(v)
					}
				}
				row = append(row, cell)
			}
			if compare {
				row = append(row, timesBetter(m.name, results[c]))
			}
			if any {
				rows = append(rows, row)
			}
		}
	}
	return rows
}

// timesBetter returns how many times better ours is than the best of the rivals. A
// ratio to a residue of the measurement itself says nothing. What is best of metricRatio
// is neither the most nor the least.
func timesBetter(metric string, r series) string {
	const negligible = 0.05
	own := r.values(ours, metric)
	var all []float64
	for _, impl := range rivals {
		if v := r.values(impl, metric); len(v) > 0 {
			all = append(all, median(v))
		}
	}
	if len(own) == 0 || len(all) == 0 || metric == metricRatio {
		return ""
	}
	over, under := slices.Min(all), median(own)
	if slices.Contains(moreIsBetter, metric) {
		over, under = under, slices.Max(all)
	}
	if over < negligible || under < negligible {
		return "-"
	}
	return fmt.Sprintf("%.2f", over/under)
}

// moreIsBetter are the metrics of which that is true.
var moreIsBetter = []string{metricGoodput, metricRate, metricSlowest}

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

// how says how the figures of a suite came about.
func how(s *suite, p plan) string {
	if s.virtual {
		return "In virtual time, one round."
	}
	return fmt.Sprintf("Medians of %d rounds of %v.", p.rounds, p.duration)
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

// createResults makes a folder and begins its table.
func createResults(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.Create(filepath.Join(dir, "README.md"))
	if err != nil {
		return nil, err
	}
	fmt.Fprint(f, "# Results\n\nWritten by `make bench`. Only ratios of figures of one run mean anything. The last column\n"+
		"compares kcp with the best of kcp-go, smux over it, quic-go and TCP.\n\n```\n")
	if err := writeHeader(f); err != nil {
		return nil, err
	}
	fmt.Fprint(f, "```\n")
	return f, nil
}

// writeResults adds the table of a suite in Markdown.
func writeResults(w io.Writer, s *suite, p plan, results map[string]series) {
	fmt.Fprintf(w, "\n## %s\n\n%s.\n%s\n\n", s.name, s.about, how(s, p))
	for i, row := range tableOf(s, p, results, false) {
		fmt.Fprintf(w, "|%s|\n", strings.Join(row, "|"))
		if i == 0 {
			fmt.Fprintln(w, "|"+strings.Repeat("---|", len(row)))
		}
	}
}
