package kcp

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// rootFiles returns the Go files of the package, without its tests.
func rootFiles(t *testing.T) (files []string) {
	t.Helper()
	all, err := filepath.Glob("*.go")
	require.NoError(t, err)
	return slices.DeleteFunc(all, func(name string) bool { return strings.HasSuffix(name, "_test.go") })
}

// typeCheck checks files as a package of their own, with the text of more added,
// and returns the errors found.
func typeCheck(t *testing.T, fset *token.FileSet, imports types.Importer, files []string, more string) (info *types.Info, parsed []*ast.File, errs []error) {
	t.Helper()
	for _, name := range files {
		file, err := parser.ParseFile(fset, name, nil, 0)
		require.NoError(t, err)
		parsed = append(parsed, file)
	}
	file, err := parser.ParseFile(fset, "session_more.go", "package kcp\n"+more, 0)
	require.NoError(t, err)
	info = &types.Info{Selections: make(map[*ast.SelectorExpr]*types.Selection), Uses: make(map[*ast.Ident]types.Object)}
	config := types.Config{Importer: imports, Error: func(err error) { errs = append(errs, err) }}
	parsed = append(parsed, file)
	_, _ = config.Check("kcp", fset, parsed, info)
	return info, parsed, errs
}

// findsAll wants no violation in the package but one in each of the bad functions, which
// are added together, a line each.
func findsAll(t *testing.T, violations func(t *testing.T, added string) []string, bad ...string) {
	t.Helper()
	sequential(t)
	var lines []string
	for _, v := range violations(t, strings.Join(bad, "\n")) {
		lines = append(lines, strings.Join(strings.SplitN(v, ":", 3)[:2], ":"))
	}
	slices.Sort(lines)
	var want []string
	for i := range bad {
		want = append(want, fmt.Sprintf("session_more.go:%d", 2+i))
	}
	require.Equal(t, want, lines)
}

// noImports finds no package.
type noImports struct{}

func (noImports) Import(path string) (*types.Package, error) {
	return nil, fmt.Errorf("%s is not loaded", path)
}
