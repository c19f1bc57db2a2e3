package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
)

// threshold is what a figure must keep to, for -check. A zero bound is none.
type threshold struct {
	c, impl, metric string
	min, max        float64
	// of, if not empty, makes the bounds multiples of the same figure of this
	// other implementation.
	of string
	// ofCase, if not empty, makes them multiples of the figure of this other
	// case. Without of it is of the same implementation.
	ofCase string
}

// check prints every threshold of s that was measured, and what became of it,
// and returns how many were missed.
func check(w io.Writer, s *suite, results map[string]series) int {
	return checkAll(w, s, s.thresholds, results)
}

// checkAll is check of any thresholds.
func checkAll(w io.Writer, s *suite, all []threshold, results map[string]series) (missed int) {
	for _, t := range all {
		r := results[t.c]
		if len(r[t.impl]) == 0 {
			continue
		}
		unit, of := 1.0, ""
		if t.of != "" || t.ofCase != "" {
			otherCase, other := cmp.Or(t.ofCase, t.c), cmp.Or(t.of, t.impl)
			v := results[otherCase].values(other, t.metric)
			if len(v) == 0 {
				continue
			}
			unit = median(v)
			of = fmt.Sprintf(" (of %s: %.4g)", strings.TrimSpace(t.ofCase+" "+t.of), unit)
		}
		v := median(r.values(t.impl, t.metric))
		miss := t.min > 0 && v < t.min*unit || t.max > 0 && v > t.max*unit
		if miss {
			missed++
		}
		bounds := ""
		if t.min > 0 {
			bounds += fmt.Sprintf(" >= %.4g", t.min*unit)
		}
		if t.max > 0 {
			bounds += fmt.Sprintf(" <= %.4g", t.max*unit)
		}
		fmt.Fprintf(w, "%s %s %s %s %s: %.4g, wanted%s%s\n", verdict(miss), s.name, t.c, t.impl, t.metric, v, bounds, of)
	}
	return missed
}
