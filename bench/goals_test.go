package main

import (
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestGoals wants a figure for each goal and each threshold, and for what a goal is a
// multiple of.
func TestGoals(t *testing.T) {
	n := 0
	for _, name := range suiteNames() {
		s := suites[name]
		n += len(goals(name))
		has := func(c, impl, metric string) bool {
			return slices.Contains(slices.Concat(s.cases, s.optional), c) && s.hasFigure(c, impl, metric)
		}
		for _, th := range slices.Concat(s.thresholds, goals(name)) {
			if !has(th.c, th.impl, th.metric) {
				t.Errorf("%s: there is no figure for %+v", name, th)
			}
		}
		for _, th := range goals(name) {
			if !has(cmp.Or(th.ofCase, th.c), cmp.Or(th.of, th.impl), th.metric) {
				t.Errorf("%s: there is no figure that %+v is a multiple of", name, th)
			}
		}
	}
	if n < 30 {
		t.Errorf("%d goals", n)
	}
}

// TestCompare wants every figure beside that of the file, and goals to leave the exit
// status alone.
func TestCompare(t *testing.T) {
	file := t.TempDir() + "/before.json"
	args := []string{"-suite", "paths", "-cases", "deep-1mbit,longer", "-peers", ours, "-d", "1ms"}
	var before, out bytes.Buffer
	fatal(t, run(append(args, "-json"), &before, &out))
	const figure = `"deep-1mbit","impl":"kcp","metric":"goodput","unit":"of the link","value":`
	fatal(t, os.WriteFile(file, []byte(strings.Replace(before.String(), figure, figure+"1", 1)), 0o600))
	results := t.TempDir()
	fatal(t, run(append(args, "-check", "-compare", file, "-out", results), &before, &out))
	for _, want := range []string{"MISSED paths deep-1mbit kcp goodput", "ok     paths longer kcp goodput", "ratio 1.000,", "goals, of which"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	table, err := os.ReadFile(filepath.Join(results, resultsFile))
	if err != nil || !bytes.Contains(table, []byte("## Goals")) {
		t.Errorf("%v\n%s", err, table)
	}
	if err := run(append(args, "-compare", file+"x"), &before, &out); err == nil {
		t.Error("a file that does not exist is accepted")
	}
}
