package main

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"
)

// suite is one set of comparable measurements. A suite lives in a file of its
// own and registers itself from an init function.
type suite struct {
	name    string
	about   string   // one line for the usage text and the head of the table
	cases   []string // in the order of the table
	impls   []string // implementations, likewise
	metrics []metric // what measure returns figures for, likewise

	// lacks reports that there is no such case of an implementation; nil means
	// that there are all.
	lacks func(c, impl string) bool

	// omits reports that measure returns no figure of a metric in a case of an
	// implementation. nil means that it returns all.
	omits func(c, impl, metric string) bool

	// units returns the unit of a metric in a case, or "" for the unit of the
	// metric. nil means the metric's in all cases.
	units func(c, metric string) string

	// optional are cases that are measured only if -cases names them.
	optional []string

	// overCores are the cases that -cores measures with one processor, two, and
	// so on. The name of a case then ends in coresMark and the number.
	overCores []string

	charts []chart // of what is shown in pictures

	// measure runs one implementation through one case for about d, not
	// counting preparation, and returns a figure for every metric,
	// except those that omits names.
	measure func(c, impl string, d time.Duration) (figures, error)

	// virtual says that time is virtual. Figures of this module then repeat to the last
	// digit, and one round is enough.
	virtual bool

	// duration is how long a measurement takes if -d is not given; 0 means
	// defaultDuration.
	duration time.Duration

	// thresholds are what -check holds the figures against.
	thresholds []threshold
}

// defaultDuration is how long a measurement of most suites takes.
const defaultDuration = 500 * time.Millisecond

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
func register(s *suite) {
	if suites[s.name] != nil {
		panic("bench: two suites named " + s.name)
	}
	suites[s.name] = s
}

// suiteNames returns the names of all suites in order.
func suiteNames() []string {
	var names []string
	for name := range suites {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// selectSuites returns the suites of a comma-separated list, or all of them
// for "all".
func selectSuites(list string) ([]*suite, error) {
	names := splitList(list)
	if list == "all" {
		names = suiteNames()
	}
	var selected []*suite
	for _, name := range names {
		s := suites[name]
		if s == nil {
			return nil, fmt.Errorf("no suite %q; there are: %s", name, strings.Join(suiteNames(), ", "))
		}
		selected = append(selected, s)
	}
	if len(selected) == 0 {
		return nil, errors.New("no suite selected")
	}
	return selected, nil
}

// restrict returns the elements of all that the comma-separated list names, in the
// order of all; an empty list means all.
func restrict(all []string, list, what string) ([]string, error) {
	names := splitList(list)
	if len(names) == 0 {
		return all, nil
	}
	for _, name := range names {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("no %s %q; there are: %s", what, name, strings.Join(all, ", "))
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(name string) bool {
		return !slices.Contains(names, name)
	}), nil
}

// coresMark stands between the name of a case and a number of processors.
const coresMark = "/cores="

// selectCases returns the cases that the comma-separated list names, in the
// order of the table. An empty list means all but the optional ones. With cores
// they are the cases over numbers of processors.
func (s *suite) selectCases(list string, cores bool) ([]string, error) {
	if cores {
		all := s.casesOverCores(runtime.NumCPU())
		if len(all) == 0 {
			return nil, fmt.Errorf("suite %s has no cases for -cores", s.name)
		}
		return restrict(all, list, "case")
	}
	if list == "" {
		return s.cases, nil
	}
	return restrict(slices.Concat(s.cases, s.optional), list, "case")
}

// casesOverCores returns the cases of -cores on a machine of n processors: with
// 1, 2, 4 and so on, and with n.
func (s *suite) casesOverCores(n int) []string {
	var all []string
	for _, c := range s.overCores {
		for cores := 1; cores < n; cores *= 2 {
			all = append(all, fmt.Sprint(c, coresMark, cores))
		}
		all = append(all, fmt.Sprint(c, coresMark, n))
	}
	return all
}

// unitOf returns the unit of a metric in a case.
func (s *suite) unitOf(c, name string) string {
	if s.units != nil {
		if unit := s.units(c, name); unit != "" {
			return unit
		}
	}
	for _, m := range s.metrics {
		if m.name == name {
			return m.unit
		}
	}
	return ""
}

// hasFigure reports whether there is a figure of a metric in a case of an
// implementation.
func (s *suite) hasFigure(c, impl, metric string) bool {
	return s.has(c, impl) && (s.omits == nil || !s.omits(c, impl, metric))
}

// hasRow reports whether any of impls has a figure of a metric in a case.
func (s *suite) hasRow(c, metric string, impls []string) bool {
	return slices.ContainsFunc(impls, func(impl string) bool { return s.hasFigure(c, impl, metric) })
}

// optionalCases says which cases are optional, for the usage text.
func optionalCases() string {
	var names []string
	for _, name := range suiteNames() {
		names = append(names, suites[name].optional...)
	}
	if len(names) == 0 {
		return ""
	}
	return " (" + strings.Join(names, ", ") + ")"
}

// coresSuites returns the names of the suites with cases for -cores.
func coresSuites() string {
	return strings.Join(slices.DeleteFunc(suiteNames(), func(name string) bool {
		return len(suites[name].overCores) == 0
	}), ", ")
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
	timeout  time.Duration // of one measurement, beyond its duration; 0 is none
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
				f, err := s.guarded(c, impl, p)
				if err != nil {
					return nil, fmt.Errorf("%s: %s: %s: %w", s.name, c, impl, err)
				}
				results[c][impl] = append(results[c][impl], f)
			}
		}
	}
	return results, nil
}

// guarded measures once, and fails where that takes far too long: any
// implementation may hang. What hangs is left behind, so that no measurement
// after it means anything.
func (s *suite) guarded(c, impl string, p plan) (figures, error) {
	if p.timeout <= 0 {
		return s.measure(c, impl, p.duration)
	}
	type result struct {
		f   figures
		err error
	}
	done := make(chan result, 1)
	go func() {
		f, err := s.measure(c, impl, p.duration)
		done <- result{f, err}
	}()
	timer := time.NewTimer(p.duration + p.timeout)
	defer timer.Stop()
	select {
	case r := <-done:
		return r.f, r.err
	case <-timer.C:
		return nil, fmt.Errorf("hangs: no result after %v", p.duration+p.timeout)
	}
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
