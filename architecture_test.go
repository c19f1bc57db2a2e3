package kcp

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// tableRows returns the rows of the tables of a page by their headings, without heads.
func tableRows(t *testing.T, page string) map[string][][]string {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	rows, heading := make(map[string][][]string), ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "#"):
			heading = strings.TrimSpace(strings.TrimLeft(line, "#"))
		case strings.HasPrefix(line, "| ---"):
			rows[heading] = nil // what came before was the head
		case strings.HasPrefix(line, "|"):
			cells := strings.Split(strings.Trim(line, "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows[heading] = append(rows[heading], cells)
		}
	}
	return rows
}

var codeSpan = regexp.MustCompile("`([^`\n]+)`")

// spans returns what stands between backquotes.
func spans(cell string) (all []string) {
	for _, m := range codeSpan.FindAllStringSubmatch(cell, -1) {
		all = append(all, m[1])
	}
	return all
}

// ARCHITECTURE.md names each file of the package once, under its layer, and no other.
func TestArchitectureFileMap(t *testing.T) {
	ofSources(t)
	sequential(t)
	doc := tableRows(t, "ARCHITECTURE.md")
	layer := func(file string) string {
		switch {
		case strings.HasPrefix(file, "conn"), file == "session.go", file == "stream.go":
			return "Conn"
		case strings.HasPrefix(file, "endpoint"):
			return "Endpoint"
		}
		return "Face"
	}
	mapped := make(map[string]bool)
	for _, heading := range []string{"Conn", "Endpoint", "Face"} {
		assert.NotEmpty(t, doc[heading], "ARCHITECTURE.md has no files of layer %s", heading)
		for _, row := range doc[heading] {
			for _, file := range spans(row[0]) {
				assert.FileExists(t, file)
				assert.False(t, mapped[file], "%s is in the file map twice", file)
				assert.Equal(t, layer(file), heading, "%s stands under the wrong layer", file)
				mapped[file] = true
			}
		}
	}
	for _, file := range rootFiles(t) {
		assert.True(t, mapped[file], "%s is missing from the file map of ARCHITECTURE.md", file)
	}
	for _, row := range doc["Other packages"] {
		for _, folder := range spans(row[0]) {
			assert.DirExists(t, folder)
		}
	}
}

// function matches the name of a function or method.
var function = regexp.MustCompile(`(?m)^func (?:\([^)]*\) )?(\w+)[(\[]`)

// functions returns the functions and methods of the repository, as pacing.Refill, or
// flushLost for one of the root, the machine or sessions, and its tests. A test is true if it is more than one of
// programs, examples or pages.
func functions(t *testing.T) (code, tests map[string]bool) {
	t.Helper()
	code, tests = make(map[string]bool), make(map[string]bool)
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		text, err := os.ReadFile(path)
		folder := filepath.ToSlash(filepath.Dir(path))
		of := ""
		if folder != "." {
			of = filepath.Base(folder) + "."
		}
		top, _, _ := strings.Cut(folder, "/")
		for _, m := range function.FindAllSubmatch(text, -1) {
			if name := string(m[1]); strings.HasSuffix(path, "_test.go") {
				tests[name] = tests[name] || top != "cmd" && top != "docs" && top != "examples"
			} else {
				code[of+name] = true
				code[name] = code[name] || folder == "internal/machine" || folder == "internal/session"
			}
		}
		return err
	}))
	return code, tests
}

// sectionHeading is a heading of WIRE.md, which begins with its number.
var sectionHeading = regexp.MustCompile(`(?m)^#+ ([0-9.]*[0-9])\.? `)

// Each rule of RULES.md names functions and tests, and headings there sections of WIRE.md,
// all of which exist. So do the tests that other pages name.
func TestArchitectureRules(t *testing.T) {
	t.Parallel()
	ofSources(t)
	sequential(t)
	wire, err := os.ReadFile("WIRE.md")
	require.NoError(t, err)
	sections := make(map[string]bool)
	for _, m := range sectionHeading.FindAllStringSubmatch(string(wire), -1) {
		sections["§"+m[1]] = true
	}
	code, tests := functions(t)
	rules := 0
	for heading, rows := range tableRows(t, "RULES.md") {
		for _, section := range regexp.MustCompile(`§[0-9.]+`).FindAllString(heading, -1) {
			assert.True(t, sections[section], "%s: WIRE.md has no section %s", heading, section)
		}
		for _, row := range rows {
			rules++
			require.Len(t, row, 3, row[0])
			deciding, noticing := strings.Fields(row[1]), strings.Fields(row[2])
			assert.NotEmpty(t, deciding, "%s: no code", row[0])
			assert.NotEmpty(t, noticing, "%s: no test", row[0])
			for _, name := range deciding {
				assert.True(t, code[name], "%s: there is no function %s", row[0], name)
			}
			for _, name := range noticing {
				assert.True(t, tests[name], "%s: there is no test %s", row[0], name)
			}
		}
	}
	require.Greater(t, rules, 150, "the rule tables are not as they were")
	page, err := os.Stat("RULES.md")
	require.NoError(t, err)
	assert.LessOrEqual(t, page.Size(), int64(40<<10), "RULES.md is to be read")
	for _, page := range []string{"SECURITY.md", "ARCHITECTURE.md", "docs/locks.md", "docs/design.md", "docs/how-to.md", "docs/walks.md"} {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, name := range regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(string(text), -1) {
			assert.Contains(t, tests, name, "%s names %s", page, name)
		}
	}
}

// Session.Inside is for tests: no other code calls it.
func TestArchitectureInside(t *testing.T) {
	t.Parallel()
	ofSources(t)
	sequential(t)
	tests := 0
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		text, err := os.ReadFile(path)
		switch calls := strings.Contains(string(text), ".Inside()"); {
		case strings.HasSuffix(path, "_test.go"):
			if calls && filepath.Base(path) != "architecture_test.go" {
				tests++
			}
		default:
			assert.False(t, calls, "%s calls Inside", path)
		}
		return err
	}))
	require.Positive(t, tests, "no test calls Inside: has it another name?")
}
