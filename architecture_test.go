package kcp

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// architecture is ARCHITECTURE.md by its headings: the rows of the tables below
// each, without their heads.
func architecture(t *testing.T) map[string][][]string {
	t.Helper()
	text, err := os.ReadFile("ARCHITECTURE.md")
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

// ARCHITECTURE.md names each file of the package once, under its layer, and no
// other.
func TestArchitectureFileMap(t *testing.T) {
	ofSources(t)
	sequential(t)
	doc, machine := architecture(t), machineFiles(t)
	layer := func(file string) string {
		switch {
		case slices.Contains(machine, file):
			return "Machine"
		case strings.HasPrefix(file, "session"):
			return "Session"
		case strings.HasPrefix(file, "endpoint"):
			return "Endpoint"
		}
		return "Face"
	}
	mapped := make(map[string]bool)
	for _, heading := range []string{"Machine", "Session", "Endpoint", "Face"} {
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

// declared returns the names that a file declares; a method's is without its type.
func declared(t *testing.T, path string) map[string]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	names := make(map[string]bool)
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			names[d.Name.Name] = true
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					names[spec.Name.Name] = true
				case *ast.ValueSpec:
					for _, id := range spec.Names {
						names[id.Name] = true
					}
				}
			}
		}
	}
	return names
}

// allTests returns the names of all tests of the repository.
func allTests(t *testing.T) map[string]bool {
	t.Helper()
	names := make(map[string]bool)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		for name := range declared(t, path) {
			names[name] = true
		}
		return nil
	})
	require.NoError(t, err)
	return names
}

// sectionHeading is a heading of WIRE.md, which begins with its number.
var sectionHeading = regexp.MustCompile(`(?m)^#+ ([0-9.]*[0-9])\.? `)

// Each rule of ARCHITECTURE.md names a section of WIRE.md, functions in their
// files, and tests, all of which exist. So do the tests that SECURITY.md names.
func TestArchitectureRules(t *testing.T) {
	ofSources(t)
	sequential(t)
	wire, err := os.ReadFile("WIRE.md")
	require.NoError(t, err)
	sections := make(map[string]bool)
	for _, m := range sectionHeading.FindAllStringSubmatch(string(wire), -1) {
		sections["§"+m[1]] = true
	}
	tests, rules := allTests(t), 0
	for _, row := range architecture(t)["Rules"] {
		require.Len(t, row, 4, row[0])
		rule, section := row[0], row[1]
		code, held := spans(row[2]), spans(row[3])
		if strings.HasPrefix(rule, "**") { // a heading
			continue
		}
		rules++
		assert.True(t, section == "–" || sections[section], "%s: WIRE.md has no section %s", rule, section)
		assert.NotEmpty(t, code, "%s: no code", rule)
		for _, place := range code {
			path, functions, _ := strings.Cut(place, ":")
			require.FileExists(t, path, rule)
			known := declared(t, path)
			for name := range strings.SplitSeq(functions, ",") {
				name = strings.TrimSpace(name)
				assert.True(t, name == "" || known[name], "%s: %s declares no %q", rule, path, name)
			}
		}
		assert.NotEmpty(t, held, "%s: no test", rule)
		for _, name := range held {
			assert.True(t, tests[name] && strings.HasPrefix(name, "Test"), "%s: there is no test %s", rule, name)
		}
	}
	require.Greater(t, rules, 40, "the rule table of ARCHITECTURE.md is not as it was")
	security, err := os.ReadFile("SECURITY.md")
	require.NoError(t, err)
	for _, name := range regexp.MustCompile(`\bTest\w+`).FindAllString(string(security), -1) {
		assert.True(t, tests[name], "SECURITY.md names %s", name)
	}
}

// The files, tests and methods that the text of ARCHITECTURE.md names exist too.
func TestArchitectureText(t *testing.T) {
	ofSources(t)
	sequential(t)
	text, err := os.ReadFile("ARCHITECTURE.md")
	require.NoError(t, err)
	known := make(map[string]bool)
	for _, file := range rootFiles(t) {
		for name := range declared(t, file) {
			known[name] = true
		}
	}
	qualified := regexp.MustCompile(`^(?:KCP|Conn|Endpoint|Listener)\.([a-zA-Z]+)$`)
	tests := allTests(t)
	for _, span := range spans(string(text)) {
		if m := qualified.FindStringSubmatch(span); m != nil && m[1] != "mu" && m[1] != "writing" {
			assert.True(t, known[m[1]], "ARCHITECTURE.md names %s", span)
		}
		if strings.HasPrefix(span, "Test") {
			assert.True(t, tests[span], "ARCHITECTURE.md names %s", span)
		}
	}
	for _, name := range regexp.MustCompile(`\b[a-z]+[a-z_]*\.go\b`).FindAllString(string(text), -1) {
		found := false
		for _, pattern := range []string{name, "*/" + name, "internal/*/" + name} {
			matches, err := filepath.Glob(pattern)
			require.NoError(t, err)
			found = found || len(matches) > 0
		}
		assert.True(t, found, "ARCHITECTURE.md names %s", name)
	}
}
