package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// change is one change of a source file.
type change struct {
	kind       kind
	file, name string // name of the function or constant
	line       int
	what       string
	text       string // the source of the condition or constant that is replaced
	from, to   int    // bytes of the file that are replaced
	put        string // of a value: by this, with %s for what was there
	part       int    // of a use: which of its two changes it is
	convert    string // of a use: the type of the constant there; empty: its own
	or         bool   // of an operand: of ||
	tests      []string
}

// kind is what a change replaces.
type kind uint8

const (
	value   kind = iota // of a constant
	check               // a condition under which a function, or a loop, is left early
	use                 // of a constant
	operand             // of a condition
)

// place names what is changed, without the line.
func (c change) place() string { return c.file + ":" + c.name }

// isConstant reports whether the value of a constant is changed.
func (c change) isConstant() bool { return c.kind == value }

// key names a change, without what happens to be in its line.
func (c change) key() string { return fmt.Sprint(c.file, ":", c.from, ":", c.kind, ":", c.what) }

func (c change) String() string { return fmt.Sprintf("%s:%d %s: %s", c.file, c.line, c.name, c.what) }

// Outcomes of a change.
const (
	caught   = "caught"
	survived = "SURVIVED"
	invalid  = "invalid" // it does not compile, or has no test in this module
	tuning   = "tuning"
	unheld   = "unheld" // as uses.txt says
)

type result struct {
	change
	outcome, note string
}

// testTime bounds the tests of one change. A change that makes them hang is
// noticed.
const testTime = 3 * time.Minute

// figures is the test that compares the constants of a package with the figures that
// RULES.md says. It belongs to every rule.
const figures = "TestRuleFigures"

// test runs the tests of the rule on the program with a constant changed. The test
// of all figures comes first, by itself, as it is fast.
func (c change) test(tests map[string][]string) result {
	if dir := "./" + filepath.ToSlash(filepath.Dir(c.file)); c.isConstant() && slices.Contains(tests[figures], dir) {
		if r := c.run([]string{figures}, dir); r.outcome != survived {
			return r
		}
	}
	dirs := c.dirs(tests)
	if len(dirs) == 0 {
		return result{c, invalid, "its tests are in other modules"}
	}
	for _, dir := range dirs {
		if r := c.run(c.tests, dir); r.outcome != survived {
			return r
		}
	}
	return result{c, survived, strings.Join(c.tests, " ")}
}

// run runs tests, which are in a folder, on the changed program.
func (c change) run(tests []string, dir string) result {
	folder, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return result{c, invalid, err.Error()}
	}
	defer os.RemoveAll(folder)
	overlay, err := c.overlay(folder)
	if err != nil {
		return result{c, invalid, err.Error()}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*testTime)
	defer cancel()
	args := []string{
		"test", "-overlay", overlay, "-short", "-count=1", "-vet=off", "-timeout", testTime.String(),
		"-run", "^(" + strings.Join(tests, "|") + ")$", ".",
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		return result{c, survived, strings.Join(tests, " ")}
	case strings.Contains(string(out), "[build failed]"):
		return result{c, invalid, firstLine(out)}
	}
	return result{c, caught, failed(out)}
}

// overlay writes the changed file, and what tells the compiler of it.
func (c change) overlay(folder string) (string, error) {
	text, err := os.ReadFile(c.file)
	if err != nil {
		return "", err
	}
	if c.to > len(text) || c.from >= c.to {
		return "", errors.New("the file has changed")
	}
	changed := string(text[:c.from]) + fmt.Sprintf(c.put, text[c.from:c.to]) + string(text[c.to:])
	path := filepath.Join(folder, "changed.go")
	if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
		return "", err
	}
	file, err := filepath.Abs(c.file)
	if err != nil {
		return "", err
	}
	b, err := json.Marshal(map[string]any{"Replace": map[string]string{file: path}})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(folder, "overlay.json")
	return overlay, os.WriteFile(overlay, b, 0o600)
}

var failLine = regexp.MustCompile(`(?m)^--- FAIL: (\w+)`)

// failed returns the name of the first test that has failed.
func failed(out []byte) string {
	if m := failLine.FindSubmatch(out); m != nil {
		return string(m[1])
	}
	return firstLine(out)
}

func firstLine(out []byte) string {
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}
