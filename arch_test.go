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

// finds wants no violation in the package, and one with each bad function added.
func finds[V any](t *testing.T, violations func(t *testing.T, added string) []V, bad ...string) {
	t.Helper()
	sequential(t)
	require.Empty(t, violations(t, ""))
	for _, b := range bad {
		require.Len(t, violations(t, b), 1, b)
	}
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

// The layers above the session call its methods, and touch no field.
func TestSessionsHideTheirFields(t *testing.T) {
	t.Parallel()
	ofSources(t)
	findsAll(t, fieldsOfSessions, "func bad(c *Conn) { c.session.shared = nil }")
}

// fieldsOfSessions returns where a file of another layer, or more, uses a field.
func fieldsOfSessions(t *testing.T, more string) (places []string) {
	t.Helper()
	fset := token.NewFileSet()
	info, _, _ := typeCheck(t, fset, noImports{}, rootFiles(t), more)
	for sel, s := range info.Selections {
		at := fset.Position(sel.Pos())
		_, of, _ := strings.Cut(s.Recv().String(), "kcp.")
		if of == "session" && s.Kind() == types.FieldVal && (at.Filename == "session_more.go" || !strings.HasPrefix(at.Filename, "session_")) {
			places = append(places, fmt.Sprintf("%v: %s", at, sel.Sel.Name))
		}
	}
	return places
}

// The session compiles without the layers above it: it knows no Conn and no Endpoint.
// Config does, as its Tracer gets one.
func TestSessionStandsAlone(t *testing.T) {
	t.Parallel()
	ofSources(t)
	sequential(t)
	var files []string
	for _, name := range rootFiles(t) {
		if strings.HasPrefix(name, "session_") || slices.Contains([]string{"kcp.go", "input.go", "rto.go", "shared.go", "config.go", "config_validate.go", "errors.go", "stats.go"}, name) {
			files = append(files, name)
		}
	}
	var unknown []string
	_, _, errs := typeCheck(t, token.NewFileSet(), noImports{}, files, "func bad(c *Conn) {}")
	for _, err := range errs {
		if place, name, ok := strings.Cut(err.Error(), ": undefined: "); ok {
			file, _, _ := strings.Cut(place, ":")
			unknown = append(unknown, file+": "+name)
		}
	}
	require.Equal(t, []string{"config.go: Conn", "session_more.go: Conn"}, unknown)
}
