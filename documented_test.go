package kcp

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// publicPackages are the folders of the packages that others import.
var publicPackages = []string{".", "compat", "crypt", "kcpgo", "netsim", "observe", "qlog"}

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
