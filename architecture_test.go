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
	doc, machine := tableRows(t, "ARCHITECTURE.md"), machineFiles(t)
	layer := func(file string) string {
		switch {
		case slices.Contains(machine, file):
			return "Machine"
		case strings.HasPrefix(file, "session_"), file == "shared.go":
			return "Session"
		case file == "session.go", strings.HasPrefix(file, "conn"):
			return "Conn"
		case strings.HasPrefix(file, "endpoint"):
			return "Endpoint"
		}
		return "Face"
	}
	mapped := make(map[string]bool)
	for _, heading := range []string{"Machine", "Session", "Conn", "Endpoint", "Face"} {
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
	test := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w*)\(`)
	names := make(map[string]bool)
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range test.FindAllSubmatch(text, -1) {
			names[string(m[1])] = true
		}
		return err
	}))
	return names
}

// sectionHeading is a heading of WIRE.md, which begins with its number.
var sectionHeading = regexp.MustCompile(`(?m)^#+ ([0-9.]*[0-9])\.? `)

// Each rule of RULES.md names a section of WIRE.md, functions in their files, and tests,
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
	tests, rules, known := allTests(t), 0, make(map[string]map[string]bool)
	for _, row := range tableRows(t, "RULES.md")["Rules"] {
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
			if known[path] == nil {
				require.FileExists(t, path, rule)
				known[path] = declared(t, path)
			}
			for name := range strings.SplitSeq(functions, ",") {
				name = strings.TrimSpace(name)
				assert.True(t, name == "" || known[path][name], "%s: %s declares no %q", rule, path, name)
			}
		}
		assert.NotEmpty(t, held, "%s: no test", rule)
		for _, name := range held {
			assert.True(t, tests[name], "%s: there is no test %s", rule, name)
		}
	}
	require.Greater(t, rules, 40, "the rule table is not as it was")
	for _, page := range []string{"SECURITY.md", "ARCHITECTURE.md", "docs/locks.md", "docs/design.md", "docs/how-to.md", "docs/walks.md"} {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, name := range regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(string(text), -1) {
			assert.True(t, tests[name], "%s names %s", page, name)
		}
	}
}
