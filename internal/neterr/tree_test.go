package neterr

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ownErrors are the tests that compare errors of this module itself, or of netsim, whose
// numbers are those of package syscall on every system.
var ownErrors = []string{
	"config_validate_test.go",
	"e2e/dial_test.go",
	"e2e/endpoint_dial_test.go",
	"e2e/handler_shutdown_test.go",
	"e2e/handshake_test.go",
	"group_handle_test.go",
	"group_send_test.go",
	"interop_test/lifecycle_test.go",
	"kcpgo/session_test.go",
	"netsim/network_test.go",
	"netsim/script_test.go",
	"session_handshake_test.go",
	"session_stream_end_test.go",
	"session_test.go",
	"session_tls_errors_test.go",
}

var systemName = regexp.MustCompile(`^(E[A-Z0-9]+|WSA[A-Z0-9]+|ERROR_[A-Z0-9_]+)$`)

// In all modules, errors of the system are compared here and nowhere else, but in files
// that are not built on Windows.
func TestComparedHere(t *testing.T) {
	const root = "../.."
	windows := build.Default
	windows.GOOS, windows.GOARCH, windows.CgoEnabled = "windows", "amd64", false
	found, files := make(map[string]bool), 0
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go":
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
		name, err := filepath.Rel(root, path)
		name = filepath.ToSlash(name)
		for _, pos := range comparisons(file) {
			if found[name] = true; !slices.Contains(ownErrors, name) {
				t.Errorf("%s compares an error of the system. Use neterr.Is", fset.Position(pos))
			}
		}
		return err
	}))
	require.Greater(t, files, 500, "the tree was not found")
	for _, name := range ownErrors {
		require.True(t, found[name], "%s compares none: it needs no row", name)
	}
	t.Log(slices.Sorted(maps.Keys(found)))
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

// comparing matches the functions of errors, require and assert that compare errors.
var comparing = regexp.MustCompile(`^(Is|ErrorIs|NotErrorIs|Equal|Same)f?$`)

// isSystem reports whether x is a package of names of the system's errors.
func isSystem(x ast.Expr) bool {
	id, ok := x.(*ast.Ident)
	return ok && slices.Contains([]string{"syscall", "unix", "windows"}, id.Name)
}
