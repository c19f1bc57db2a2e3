package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Checks are taken out of one program, built once: each is made to depend on a number
// in the environment that names the one to leave out. Only constants need a program for
// each change.

// removedVariable names the environment variable with the number of the check to leave
// out.
const removedVariable = "KCP_MUTATE_CHECK"

// checkTime bounds the tests of one check, which are built already.
const checkTime = 90 * time.Second

// checks is the tests with all checks made to depend on removedVariable.
type checks struct {
	folder  string
	numbers map[string]int    // of the checks, by change.key
	tests   map[string]string // programs of tests, by folder
}

// key names a change, without what happens to be in its line.
func (c change) key() string { return fmt.Sprint(c.file, ":", c.from) }

// buildChecks builds the tests of all changes that are checks. The caller removes the
// folder.
func buildChecks(changes []change, tests map[string][]string) (*checks, error) {
	b := &checks{numbers: make(map[string]int), tests: make(map[string]string)}
	byFile := make(map[string][]change)
	var dirs []string
	for _, c := range changes {
		if c.isConstant() {
			continue
		}
		b.numbers[c.key()] = len(b.numbers) + 1
		byFile[c.file] = append(byFile[c.file], c)
		dirs = append(dirs, c.dirs(tests)...)
	}
	var err error
	if b.folder, err = os.MkdirTemp("", "mutate"); err != nil {
		return nil, err
	}
	overlay, err := b.overlay(byFile)
	if err != nil {
		return b, err
	}
	slices.Sort(dirs)
	for i, dir := range slices.Compact(dirs) {
		program := filepath.Join(b.folder, fmt.Sprint("test", i))
		out, err := exec.Command("go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", program, dir).CombinedOutput()
		if err != nil {
			return b, fmt.Errorf("%s: %w\n%s", dir, err, out)
		}
		b.tests[dir] = program
	}
	return b, nil
}

var packageLine = regexp.MustCompile(`(?m)^package \w+`)

// overlay writes the changed files, one with the number for each package, and what
// tells the compiler of them.
func (b *checks) overlay(byFile map[string][]change) (string, error) {
	replace := make(map[string]string)
	written := 0
	put := func(file, text string) error {
		written++
		path := filepath.Join(b.folder, fmt.Sprint(written, ".go"))
		at, err := filepath.Abs(file)
		if err != nil {
			return err
		}
		replace[at] = path
		return os.WriteFile(path, []byte(text), 0o600)
	}
	for file, all := range byFile {
		b0, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		slices.SortFunc(all, func(x, y change) int { return y.from - x.from }) // the last first
		text := string(b0)
		for _, c := range all {
			text = fmt.Sprintf("%sremovedCheck != %d && (%s)%s", text[:c.from], b.numbers[c.key()], text[c.from:c.to], text[c.to:])
		}
		if err := put(file, text); err != nil {
			return "", err
		}
		number := packageLine.FindString(text) + `

import (
	"os"
	"strconv"
)

var removedCheck = func() int {
	n, _ := strconv.Atoi(os.Getenv("` + removedVariable + `"))
	return n
}()
`
		if err := put(filepath.Join(filepath.Dir(file), "zz_removed.go"), number); err != nil {
			return "", err
		}
	}
	j, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(b.folder, "overlay.json")
	return overlay, os.WriteFile(overlay, j, 0o600)
}

// test runs the tests of a change without its check.
func (b *checks) test(c change, tests map[string][]string) result {
	dirs := c.dirs(tests)
	if len(dirs) == 0 {
		return result{c, invalid, "its tests are in other modules"}
	}
	for _, dir := range dirs {
		ctx, cancel := context.WithTimeout(context.Background(), 2*checkTime)
		cmd := exec.CommandContext(ctx, b.tests[dir], "-test.short", "-test.timeout", checkTime.String(),
			"-test.run", "^("+strings.Join(c.tests, "|")+")$")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), fmt.Sprint(removedVariable, "=", b.numbers[c.key()]))
		out, err := cmd.CombinedOutput()
		cancel()
		if err != nil {
			return result{c, caught, failed(out)}
		}
	}
	return result{c, survived, strings.Join(c.tests, " ")}
}

// dirs returns the folders of the tests of a change.
func (c change) dirs(tests map[string][]string) (dirs []string) {
	for _, name := range c.tests {
		for _, dir := range tests[name] {
			if !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs
}
