package kcp

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
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
