package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// baseline holds figures of an earlier run, by suite, case, implementation and
// metric.
type baseline map[[4]string]float64

// worse is how far a figure may be below an earlier one: a ratio.
const worse = 0.95

// readBaseline reads what -json has written.
func readBaseline(r io.Reader) (baseline, error) {
	b := baseline{}
	for dec := json.NewDecoder(r); ; {
		var rec record
		if err := dec.Decode(&rec); errors.Is(err, io.EOF) {
			return b, nil
		} else if err != nil {
			return nil, err
		}
		b[[4]string{rec.Suite, rec.Case, rec.Impl, rec.Metric}] = rec.Value
	}
}

// baselineOf returns the named file, or nil for no name.
func baselineOf(name string) (baseline, error) {
	if name == "" {
		return nil, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := readBaseline(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return b, nil
}

// compare prints the figures of s beside the earlier ones, or only those that are
// worse, and the median of each metric. Ratios above 1 are better. It returns how many
// figures are worse by 5 %, and how many medians are not better.
func (b baseline) compare(w io.Writer, s *suite, results map[string]series, all bool) (missed int) {
	for _, impl := range s.impls {
		for _, m := range s.metrics {
			var ratios []float64
			for _, c := range slices.Concat(s.cases, s.optional) {
				before, ok := b[[4]string{s.name, c, impl, m.name}]
				v := results[c].values(impl, m.name)
				if !ok || len(v) == 0 {
					continue
				}
				ratio := improvement(m.name, before, median(v))
				ratios = append(ratios, ratio)
				if ratio < worse {
					missed++
				}
				if all || ratio < worse {
					fmt.Fprintf(w, "%s %s %s %s %s: %.4g, before %.4g, ratio %.3f, wanted >= %.4g\n",
						verdict(ratio < worse), s.name, c, impl, m.name, median(v), before, ratio, worse)
				}
			}
			if len(ratios) < 2 {
				continue
			}
			mid := median(ratios)
			if mid <= 1 {
				missed++
			}
			fmt.Fprintf(w, "%s %s median of %d %s %s: ratio %.4f, wanted > 1\n", verdict(mid <= 1), s.name, len(ratios), impl, m.name, mid)
		}
	}
	return missed
}

// improvement returns the ratio of two figures of a metric, above 1 if the second is
// the better one.
func improvement(metric string, before, after float64) float64 {
	if better(metric) == "more" {
		before, after = after, before
	}
	if after == 0 { // in virtual time there are zeros
		after, before = 1, before+1
	}
	return before / after
}

// verdict is the first word of a line of -check.
func verdict(missed bool) string {
	if missed {
		return "MISSED"
	}
	return "ok    "
}
