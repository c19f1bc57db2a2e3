package main

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"
)

// suite is one set of comparable measurements. A suite lives in a file of its
// own and registers itself from an init function.
type suite struct {
	name    string
	about   string   // one line for the head of the table
	cases   []string // in the order of the table
	impls   []string // implementations, likewise
	metrics []metric // likewise

	// lacks reports that there is no such case of an implementation; nil means
	// that there are all.
	lacks func(c, impl string) bool

	// measure runs one implementation through one case for about d, not counting
	// preparation, and returns figures of some of the metrics.
	measure func(c, impl string, d time.Duration) (figures, error)

	// virtual says that time is virtual. Figures of this module then repeat to the last
	// digit, and one round is enough.
	virtual bool

	// duration is how long a measurement takes if -d is not given; 0 means
	// defaultDuration.
	duration time.Duration

	// goals are what -check holds the figures against.
	goals []goal
}

// defaultDuration is how long a measurement of most suites takes.
const defaultDuration = 500 * time.Millisecond

// quickRun is the duration below which a measurement is a trial.
const quickRun = 100 * time.Millisecond

// metric is a quantity that a suite measures.
type metric struct {
	name string
	unit string
}

// figures holds one measured value for each metric, by name.
type figures map[string]float64

// suites holds what has registered itself, by name.
var suites = map[string]*suite{}

// register makes s known. It is meant for init functions.
func register(s *suite) { suites[s.name] = s }

// suiteNames returns the names of all suites in order.
func suiteNames() []string { return slices.Sorted(maps.Keys(suites)) }

// selectSuites returns the suites of a comma-separated list, or all of them
// for "all".
func selectSuites(list string) (selected []*suite, err error) {
	names := suiteNames()
	if list != "all" {
		if names, err = restrict(names, list, "suite"); err != nil {
			return nil, err
		}
	}
	for _, name := range names {
		selected = append(selected, suites[name])
	}
	return selected, nil
}

// restrict returns the elements of all that the comma-separated list names, in the
// order of all; an empty list means all.
func restrict(all []string, list, what string) ([]string, error) {
	if list == "" {
		return all, nil
	}
	names := splitList(list)
	for _, name := range names {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("no %s %q; there are: %s", what, name, strings.Join(all, ", "))
		}
	}
	if len(names) == 0 {
		return nil, errors.New("no " + what + " is named")
	}
	return slices.DeleteFunc(slices.Clone(all), func(name string) bool {
		return !slices.Contains(names, name)
	}), nil
}

// splitList splits at commas and drops what is empty.
func splitList(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// has reports whether there is such a case of an implementation.
func (s *suite) has(c, impl string) bool { return s.lacks == nil || !s.lacks(c, impl) }

// plan says how a suite is run.
type plan struct {
	cases    []string
	impls    []string
	duration time.Duration // of one measurement
	rounds   int
}

// series holds the figures of all rounds of one case, by implementation.
type series map[string][]figures

// run measures every case. The implementations take turns within a round and
// swap places from one round to the next, so that a change in the state of
// the machine meets all of them.
func (s *suite) run(p plan) (map[string]series, error) {
	results := map[string]series{}
	for _, c := range p.cases {
		results[c] = series{}
		for round := range p.rounds {
			order := slices.Clone(p.impls)
			if round%2 == 1 {
				slices.Reverse(order)
			}
			for _, impl := range order {
				if !s.has(c, impl) {
					continue
				}
				runtime.GC()
				f, err := s.measure(c, impl, p.duration)
				if err != nil {
					return nil, fmt.Errorf("%s: %s: %s: %w", s.name, c, impl, err)
				}
				results[c][impl] = append(results[c][impl], f)
			}
		}
	}
	return results, nil
}

// values returns the figures of one metric, a value for each round that has
// one.
func (r series) values(impl, metric string) []float64 {
	var v []float64
	for _, f := range r[impl] {
		if x, ok := f[metric]; ok {
			v = append(v, x)
		}
	}
	return v
}

// median returns the middle of v, and 0 for none.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	mid := len(v) / 2
	if len(v)%2 == 1 {
		return v[mid]
	}
	return (v[mid-1] + v[mid]) / 2
}

// quantile returns the value that a share q of sorted does not exceed.
func quantile(sorted []float64, q float64) float64 {
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
