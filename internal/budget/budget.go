// Package budget compares figures of the code with the most that they may be. A table
// has a line for each figure: its name, the most, and what it counts.
package budget

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

//go:embed testdata/budgets.txt
var table string

// Test compares figures with the table of the module, testdata/budgets.txt.
func Test(t *testing.T, figures map[string]int) {
	t.Helper()
	lines, err := Parse(table)
	if err != nil {
		t.Fatal(err)
	}
	if wrong := Check(lines, figures); wrong != nil {
		t.Errorf("internal/budget/testdata/budgets.txt (CONTRIBUTING.md says when lines change):\n%s", strings.Join(wrong, "\n"))
	}
}

// Line is a line of a table.
type Line struct {
	Name  string
	Most  int
	Count string // what the figure counts
}

// String returns the line as the table has it.
func (l Line) String() string { return fmt.Sprintf("%-18s %6d  %s", l.Name, l.Most, l.Count) }

// Parse reads a table. Lines that are empty or begin with # are ignored.
func Parse(table string) (lines []Line, err error) {
	for text := range strings.Lines(table) {
		text = strings.TrimSpace(text)
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		fields := strings.Fields(text)
		if len(fields) < 3 {
			return nil, fmt.Errorf("no name, number and phrase: %s", text)
		}
		most, err := strconv.Atoi(fields[1])
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(lines, func(l Line) bool { return l.Name == fields[0] }) {
			return nil, fmt.Errorf("twice: %s", text)
		}
		lines = append(lines, Line{fields[0], most, strings.Join(fields[2:], " ")})
	}
	return lines, nil
}

// Check compares figures with their lines, and returns which are above them or have none.
// A figure that falls is as it should be.
func Check(lines []Line, figures map[string]int) (wrong []string) {
	for name, is := range figures {
		i := slices.IndexFunc(lines, func(l Line) bool { return l.Name == name })
		if i < 0 {
			wrong = append(wrong, "no line: "+Line{name, is, "..."}.String())
			continue
		}
		if line := lines[i]; is > line.Most {
			wrong = append(wrong, fmt.Sprintf("%s: %d, which is %d above its line: %s", name, is, is-line.Most, line))
		}
	}
	slices.Sort(wrong)
	return wrong
}

// sources returns the names of the Go files in a folder, without its tests.
func sources(dir string) (names []string, err error) {
	all, err := filepath.Glob(filepath.Join(dir, "*.go"))
	return slices.DeleteFunc(all, func(name string) bool { return strings.HasSuffix(name, "_test.go") }), err
}

// Layers are what the names of the root's files begin with that are not of the state
// machine (ARCHITECTURE.md).
var Layers = []string{"session", "conn", "endpoint", "border", "shared", "group", "listener", "dial", "config", "errors", "stats", "deadline", "doc"}

// layerOf returns what of Layers a name begins with.
func layerOf(name string) string {
	for _, layer := range Layers {
		if strings.HasPrefix(filepath.Base(name), layer) {
			return layer
		}
	}
	return "machine"
}

// Texts returns the figures of the files in the root folder: Go files and their lines, by
// layer, and the bytes of pages.
func Texts(dir string) (map[string]int, error) {
	figures := make(map[string]int)
	names, err := sources(dir)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		for _, group := range []string{"root", layerOf(name)} {
			if group == "root" || group == "machine" || group == "session" || group == "conn" || group == "endpoint" {
				figures[group+"-files"]++
				figures[group+"-lines"] += bytes.Count(text, []byte("\n"))
			}
		}
	}
	for _, page := range []string{"README.md", "ARCHITECTURE.md"} {
		info, err := os.Stat(filepath.Join(dir, page))
		if err != nil {
			return nil, err
		}
		figures[page] = int(info.Size())
	}
	return figures, nil
}

// Docs returns how many lines go doc -all shows of the package in a folder.
func Docs(dir string) (int, error) {
	text, err := run(dir, "go", "doc", "-all", ".")
	return bytes.Count(text, []byte("\n")), err
}

// run returns the output of a command in a folder.
func run(dir, name string, args ...string) ([]byte, error) {
	command := exec.Command(name, args...)
	command.Dir = dir
	var errors bytes.Buffer
	command.Stderr = &errors
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, errors.Bytes())
	}
	return out, nil
}
