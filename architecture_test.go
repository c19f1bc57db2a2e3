package kcp

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// internals are the pages about the code.
var internals = []string{
	"ARCHITECTURE.md", "RULES.md", "docs/walks.md", "docs/locks.md", "docs/glossary.md", "docs/design.md", "docs/how-to.md",
}

// aboutCode returns the text of all pages about the code.
func aboutCode(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, page := range internals {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		all.Write(text)
	}
	return all.String()
}

// architecture is ARCHITECTURE.md and RULES.md by their headings: the rows of the
// tables below each, without their heads.
func architecture(t *testing.T) map[string][][]string {
	t.Helper()
	rows, heading := make(map[string][][]string), ""
	for line := range strings.Lines(aboutCode(t)) {
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

// Each rule of RULES.md names a section of WIRE.md, functions in their
// files, and tests, all of which exist. So do the tests that SECURITY.md names.
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
	page, err := os.ReadFile("RULES.md")
	require.NoError(t, err)
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
			isTest := strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Fuzz")
			assert.True(t, tests[name] && isTest, "%s: there is no test %s", rule, name)
		}
	}
	require.Greater(t, rules, 40, "the rule table is not as it was")
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "|") {
			n := utf8.RuneCountInString(strings.TrimSpace(line))
			assert.LessOrEqual(t, n, 300, "a row of several rules? %s", line)
		}
	}
	security, err := os.ReadFile("SECURITY.md")
	require.NoError(t, err)
	for _, name := range regexp.MustCompile(`\bTest\w+`).FindAllString(string(security), -1) {
		assert.True(t, tests[name], "SECURITY.md names %s", name)
	}
}

// The files, tests and methods that the pages about the code name exist too.
func TestArchitectureText(t *testing.T) {
	t.Parallel()
	ofSources(t)
	sequential(t)
	text := aboutCode(t)
	known := make(map[string]bool)
	for _, file := range rootFiles(t) {
		for name := range declared(t, file) {
			known[name] = true
		}
	}
	qualified := regexp.MustCompile(`^(?:KCP|Conn|Endpoint|Listener)\.([a-zA-Z]+)$`)
	tests := allTests(t)
	for _, span := range spans(text) {
		if m := qualified.FindStringSubmatch(span); m != nil && m[1] != "mu" && m[1] != "writing" {
			assert.True(t, known[m[1]], "a page about the code names %s", span)
		}
		if strings.HasPrefix(span, "Test") {
			assert.True(t, tests[span], "a page about the code names %s", span)
		}
	}
	for _, name := range regexp.MustCompile(`\b[a-z]+[a-z_]*\.go\b`).FindAllString(text, -1) {
		found := false
		for _, pattern := range []string{name, "*/" + name, "internal/*/" + name, "tunnel/internal/*/" + name} {
			matches, err := filepath.Glob(pattern)
			require.NoError(t, err)
			found = found || len(matches) > 0
		}
		assert.True(t, found, "a page about the code names %s", name)
	}
}

// publicPackages are the folders of the packages that others import.
var publicPackages = []string{".", "compat", "crypt", "kcpgo", "netsim", "observe", "qlog", "tunnel", "tunnel/kcptun"}

// selfExplaining are methods whose names say what every reader of Go knows.
var selfExplaining = []string{"Error", "Is", "String", "Timeout", "Temporary", "Unwrap"}

// All that is exported has a comment: of its own, behind it, or that of the group
// it is in, which ends with a blank line.
func TestExportedIsDocumented(t *testing.T) {
	ofSources(t)
	sequential(t)
	var bad []string
	for _, dir := range publicPackages {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		require.NoError(t, err)
		require.NotEmpty(t, files, dir)
		for _, name := range files {
			if !strings.HasSuffix(name, "_test.go") {
				bad = append(bad, undocumented(t, name, nil)...)
			}
		}
	}
	require.Empty(t, bad)

	const source = `package p
func F() {}
func (T) M() {}
func (T) String() string { return "" }
func (u) M() {}
type T struct {
	A int // has one
	B, C int

	// D and E have one.
	D int
	E int

	F func()
	g int
	fmt.Stringer
}
type u struct{ A int }
// I has one.
type I interface {
	M()
	N() // has one
}
const X = 1
// Both have one.
var (
	Y = 1
	Z = 1
)`
	require.Equal(t, []string{"F", "T.M", "T", "T.B", "T.C", "T.F", "I.M", "X"}, undocumented(t, "bad.go", source))
}

// undocumented returns what of a file is exported and has no comment. source is
// as for parser.ParseFile.
func undocumented(t *testing.T, name string, source any) (found []string) {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, source, parser.ParseComments)
	require.NoError(t, err)
	add := func(what string) {
		if source == nil {
			what = name + ": " + what
		}
		found = append(found, what)
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			what, exported := functionName(d)
			if exported && d.Doc == nil {
				add(what)
			}
		case *ast.GenDecl:
			g := group{fset: fset}
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.ValueSpec:
					covered := g.covers(s, s.Doc, s.Comment) || d.Doc != nil
					for _, id := range s.Names {
						if id.IsExported() && !covered {
							add(id.Name)
						}
					}
				case *ast.TypeSpec:
					if !s.Name.IsExported() {
						continue
					}
					if d.Doc == nil && s.Doc == nil && s.Comment == nil {
						add(s.Name.Name)
					}
					for _, member := range undocumentedMembers(fset, s.Type) {
						add(s.Name.Name + "." + member)
					}
				}
			}
		}
	}
	return found
}

// functionName returns the name of a function or method, and whether it is
// exported and needs a comment.
func functionName(d *ast.FuncDecl) (name string, exported bool) {
	name, exported = d.Name.Name, d.Name.IsExported()
	if d.Recv == nil {
		return name, exported
	}
	base := d.Recv.List[0].Type
	if star, ok := base.(*ast.StarExpr); ok {
		base = star.X
	}
	if of, ok := base.(*ast.IndexExpr); ok {
		base = of.X
	}
	id, ok := base.(*ast.Ident)
	if !ok || !id.IsExported() || slices.Contains(selfExplaining, name) {
		return name, false
	}
	return id.Name + "." + name, exported
}

// undocumentedMembers returns the exported fields or methods of a type without
// comments.
func undocumentedMembers(fset *token.FileSet, of ast.Expr) (found []string) {
	var list *ast.FieldList
	switch of := of.(type) {
	case *ast.StructType:
		list = of.Fields
	case *ast.InterfaceType:
		list = of.Methods
	default:
		return nil
	}
	g := group{fset: fset}
	for _, f := range list.List {
		covered := g.covers(f, f.Doc, f.Comment)
		for _, id := range f.Names {
			if id.IsExported() && !covered {
				found = append(found, id.Name)
			}
		}
	}
	return found
}

// group follows the comments of declarations that come after each other.
type group struct {
	fset      *token.FileSet
	commented bool // the group has a comment in front of its first declaration
	last      int  // line at which the last declaration ends
}

// covers reports whether the next declaration has a comment of its own, or is in
// a group that has one.
func (g *group) covers(n ast.Node, doc, behind *ast.CommentGroup) bool {
	begins := g.fset.Position(n.Pos()).Line
	g.commented = doc != nil || g.commented && begins == g.last+1
	g.last = g.fset.Position(n.End()).Line
	return g.commented || behind != nil
}

// What go doc shows names nothing that it does not show: those are notes for
// maintainers, which belong to unexported declarations.
func TestDocsNameNothingUnexported(t *testing.T) {
	t.Parallel()
	ofSources(t)
	sequential(t)
	for _, dir := range publicPackages {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		require.NoError(t, err)
		fset := token.NewFileSet()
		var parsed []*ast.File
		for _, name := range files {
			if !strings.HasSuffix(name, "_test.go") {
				file, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
				require.NoError(t, err)
				parsed = append(parsed, file)
			}
		}
		require.Empty(t, unexportedInDocs(t, fset, parsed), dir)
	}

	const source = `package p
// T is like smallThing, and needs T.mu.
type T struct {
	// F is for smallThing.
	F int
	mu int // smallThing
}
// M needs T.mu, and M.md has more.
func (*T) M() {}
type smallThing struct{} // of T.mu
`
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "p.go", source, parser.ParseComments)
	require.NoError(t, err)
	require.Equal(t, []string{"T.mu", "T.mu", "smallThing", "smallThing"}, unexportedInDocs(t, fset, []*ast.File{file}))
}

// unexportedInDocs returns the unexported names in the documentation of a
// package: those that nobody takes for an English word.
func unexportedInDocs(t *testing.T, fset *token.FileSet, files []*ast.File) (found []string) {
	t.Helper()
	hidden, parameters := make(map[string]bool), make(map[string]bool)
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				hidden[n.Name.Name] = true
				for _, p := range n.Type.Params.List {
					for _, id := range p.Names {
						parameters[id.Name] = parameters[id.Name] || n.Name.IsExported()
					}
				}
			case *ast.TypeSpec:
				hidden[n.Name.Name] = true
			case *ast.StructType:
				for _, field := range n.Fields.List {
					for _, id := range field.Names {
						hidden[id.Name] = true
					}
				}
			}
			return true
		})
	}
	p, err := doc.NewFromFiles(fset, files, "p")
	require.NoError(t, err)
	var shown strings.Builder
	show := func(text string, decl ast.Decl) {
		shown.WriteString(text + "\n")
		ast.Inspect(decl, func(n ast.Node) bool {
			if c, ok := n.(*ast.CommentGroup); ok {
				shown.WriteString(c.Text())
			}
			return true
		})
	}
	funcs := p.Funcs
	for _, of := range p.Types {
		show(of.Doc, of.Decl)
		funcs = append(append(funcs, of.Funcs...), of.Methods...)
	}
	for _, f := range funcs {
		shown.WriteString(f.Doc)
	}
	for _, v := range append(p.Consts, p.Vars...) {
		show(v.Doc, v.Decl)
	}
	for _, word := range regexp.MustCompile(`\b([A-Z]\w*\.)?[a-z]\w*\b`).FindAllString(shown.String(), -1) {
		_, name, selected := strings.Cut(word, ".")
		if !selected {
			name = word
		}
		if hidden[name] && (selected || name != strings.ToLower(name) && !parameters[name]) {
			found = append(found, word)
		}
	}
	slices.Sort(found)
	return found
}

// No line of a comment is wider than 90 columns, a tab being 4.
func TestCommentsAreNarrow(t *testing.T) {
	t.Parallel()
	ofSources(t)
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		text, err := os.ReadFile(path)
		for i, line := range strings.Split(string(text), "\n") {
			comment := strings.HasPrefix(strings.TrimSpace(line), "// ")
			width := len([]rune(strings.ReplaceAll(line, "\t", "    ")))
			assert.False(t, comment && width > 90, "%s:%d: %d columns", path, i+1, width)
		}
		return err
	}))
}
