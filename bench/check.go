package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
)

// goal is what a figure is held against by -check. A zero bound is none.
type goal struct {
	c, impl, metric string
	min, max        float64
	// of, if not empty, makes the bounds multiples of the same figure of this
	// other implementation.
	of string
	// ofCase, if not empty, makes them multiples of the figure of this other
	// case. Without of it is of the same implementation.
	ofCase string
}

// check prints every goal of s that was measured, and what became of it, and
// returns how many were missed.
func check(w io.Writer, s *suite, results map[string]series) (missed int) {
	for _, g := range s.goals {
		v := results[g.c].values(g.impl, g.metric)
		if len(v) == 0 {
			continue
		}
		unit, of := 1.0, ""
		if g.of != "" || g.ofCase != "" {
			other := results[cmp.Or(g.ofCase, g.c)].values(cmp.Or(g.of, g.impl), g.metric)
			if len(other) == 0 {
				continue
			}
			unit = median(other)
			of = fmt.Sprintf(" (of %s: %.4g)", strings.TrimSpace(g.ofCase+" "+g.of), unit)
		}
		verdict, bounds := "ok    ", ""
		if g.min > 0 {
			bounds += fmt.Sprintf(" >= %.4g", g.min*unit)
		}
		if g.max > 0 {
			bounds += fmt.Sprintf(" <= %.4g", g.max*unit)
		}
		if m := median(v); g.min > 0 && m < g.min*unit || g.max > 0 && m > g.max*unit {
			verdict = "MISSED"
			missed++
		}
		fmt.Fprintf(w, "%s %s %s %s %s: %.4g, wanted%s%s\n", verdict, s.name, g.c, g.impl, g.metric, median(v), bounds, of)
	}
	return missed
}
