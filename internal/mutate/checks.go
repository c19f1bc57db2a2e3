package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Checks, uses and operands are changed in one program, built once: each depends on a
// number in the environment that names the one to change. Only values of constants need a
// program for each change.

// removedVariable names the environment variable with the number of what is changed.
const removedVariable = "KCP_MUTATE_CHECK"

// checkTime bounds the tests of one change, which are built already.
const checkTime = 90 * time.Second

// checks is the tests with all checks made to depend on removedVariable.
type checks struct {
	folder  string
	numbers map[string]int    // of the checks, by change.key
	tests   map[string]string // programs of tests, by folder
	written map[string]string // the changed files, by the path of what stands for them
}

// buildChecks builds the tests of all changes except changes of values. A use that does
// not compile with its change is left out, and has no number. The caller removes the
// folder.
func buildChecks(changes []change, tests map[string][]string) (*checks, error) {
	b := &checks{numbers: make(map[string]int), tests: make(map[string]string), written: make(map[string]string)}
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
	slices.Sort(dirs)
	dirs = slices.Compact(dirs)
	var err error
	if b.folder, err = os.MkdirTemp("", "mutate"); err != nil {
		return nil, err
	}
	overlay, err := b.overlay(byFile)
	if err != nil {
		return b, err
	}
	for i, dir := range dirs {
		program := filepath.Join(b.folder, fmt.Sprint("test", i))
		for {
			cmd := exec.Command("go", "test", "-c", "-vet=off", "-gcflags=-e", "-overlay", overlay, "-o", program, ".")
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			if err == nil {
				break
			}
			if !b.leaveOut(byFile, string(out)) {
				return b, fmt.Errorf("%s: %w\n%s", dir, err, out)
			}
			if overlay, err = b.overlay(byFile); err != nil {
				return b, err
			}
		}
		b.tests[dir] = program
	}
	return b, nil
}

var errorLine = regexp.MustCompile(`(?m)^([^\s:]+\.go):(\d+):`)

// leaveOut takes the uses out of which the compiler complains. It reports whether there
// are some.
func (b *checks) leaveOut(byFile map[string][]change, complaints string) (some bool) {
	for _, m := range errorLine.FindAllStringSubmatch(complaints, -1) {
		file := b.written[m[1]]
		line, _ := strconv.Atoi(m[2])
		byFile[file] = slices.DeleteFunc(byFile[file], func(c change) bool {
			out := c.kind == use && c.line == line
			if out {
				delete(b.numbers, c.key())
			}
			some = some || out
			return out
		})
	}
	return some
}

// insertion is text that is put before a byte of a file.
type insertion struct {
	at    int
	after int // of several at the same byte, those that reach further come first
	text  string
}

// insertions returns what makes changes depend on their numbers.
func (b *checks) insertions(all []change) (list []insertion) {
	put := func(c change, before string) {
		list = append(list, insertion{c.from, -c.to, before}, insertion{c.to, 0, ")"})
	}
	for _, c := range all {
		n := b.numbers[c.key()]
		switch c.kind {
		case check:
			put(c, fmt.Sprintf("removedCheck != %d && (", n))
		case operand:
			if c.or {
				put(c, fmt.Sprintf("(removedCheck != %d) && (", n))
			} else {
				put(c, fmt.Sprintf("((removedCheck == %d) || ", n))
			}
		case use:
			if c.convert == "" {
				put(c, fmt.Sprintf("removedUse(%d, %d, ", n, c.part))
			} else {
				put(c, fmt.Sprintf("removedUse(%d, %d, (%s)(", n, c.part, c.convert))
				list = append(list, insertion{c.to, 0, ")"})
			}
		}
	}
	slices.SortStableFunc(list, func(x, y insertion) int { return cmp.Or(x.at-y.at, x.after-y.after) })
	return list
}

var packageLine = regexp.MustCompile(`(?m)^package \w+`)

// numberFile is a file of each changed package, which follows the line of the package.
const numberFile = `

import (
	"os"
	"strconv"
)

var removedCheck = func() int {
	n, _ := strconv.Atoi(os.Getenv("` + removedVariable + `"))
	return n
}()

func removedUse[T ~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr | ~float32 | ~float64](n, part int, v T) T {
	switch {
	case n != removedCheck:
		return v
	case part == 0:
		return v * 4
	}
	return v / 4
}
`

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
		replace[at], b.written[path] = path, file
		return os.WriteFile(path, []byte(text), 0o600)
	}
	for file, all := range byFile {
		b0, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		var text strings.Builder
		done := 0
		for _, in := range b.insertions(all) {
			text.Write(b0[done:in.at])
			text.WriteString(in.text)
			done = in.at
		}
		text.Write(b0[done:])
		if err := put(file, text.String()); err != nil {
			return "", err
		}
		if err := put(filepath.Join(filepath.Dir(file), "zz_removed.go"), packageLine.FindString(string(b0))+numberFile); err != nil {
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
	if b.numbers[c.key()] == 0 {
		return result{c, invalid, "it does not compile"}
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

// dirs returns the folders of the tests of a change, as far as they are in its module.
func (c change) dirs(tests map[string][]string) (dirs []string) {
	for _, name := range c.tests {
		for _, dir := range tests[name] {
			if !slices.Contains(dirs, dir) && moduleOf(dir) == moduleOf(filepath.Dir(c.file)) {
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs
}

// moduleOf returns the folder of the module of a folder.
func moduleOf(dir string) string {
	for dir = filepath.Clean(dir); dir != "."; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
	}
	return dir
}
