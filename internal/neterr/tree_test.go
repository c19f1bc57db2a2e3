package neterr

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var systemName = regexp.MustCompile(`^(E[A-Z0-9]+|WSA[A-Z0-9]+|ERROR_[A-Z0-9_]+)$`)

// In all modules, the code compares errors of the system here and nowhere else, but in
// files that are not built on Windows.
func TestComparedHere(t *testing.T) {
	const root = "../.."
	windows := build.Default
	windows.GOOS, windows.GOARCH, windows.CgoEnabled = "windows", "amd64", false
	files := 0
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		if built, err := windows.MatchFile(filepath.Split(path)); err != nil || !built {
			return err
		}
		files++
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, 0)
		if err != nil {
			return err
		}
		for _, pos := range comparisons(file) {
			t.Errorf("%s compares an error of the system. Use neterr.Is", fset.Position(pos))
		}
		return nil
	}))
	require.Greater(t, files, 300, "the tree was not found")
}

// comparisons returns where file compares something with an error of the system.
func comparisons(file *ast.File) (at []token.Pos) {
	names := func(exprs ...ast.Expr) {
		for _, expr := range exprs {
			if e, ok := expr.(*ast.SelectorExpr); ok && systemName.MatchString(e.Sel.Name) && isSystem(e.X) {
				at = append(at, e.Pos())
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			if n.Op == token.EQL || n.Op == token.NEQ {
				names(n.X, n.Y)
			}
		case *ast.CaseClause:
			names(n.List...)
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.SelectorExpr); ok {
				if x, ok := f.X.(*ast.Ident); ok && x.Name != "neterr" && comparing.MatchString(f.Sel.Name) {
					names(n.Args...)
				}
			}
		}
		return true
	})
	return at
}

// comparing matches the functions that compare errors.
var comparing = regexp.MustCompile(`^(Is|Equal)$`)

// isSystem reports whether x is a package of names of the system's errors.
func isSystem(x ast.Expr) bool {
	id, ok := x.(*ast.Ident)
	return ok && slices.Contains([]string{"syscall", "unix", "windows"}, id.Name)
}
