package kcp

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// machineFiles returns the files of the state machine: all but those of another
// layer. They know no clock, socket, lock or goroutine.
func machineFiles(t *testing.T) (files []string) {
	t.Helper()
	for _, name := range rootFiles(t) {
		if !slices.ContainsFunc(prefixes, func(layer string) bool { return strings.HasPrefix(name, layer) }) {
			files = append(files, name)
		}
	}
	return files
}

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

// sourceImports finds packages of the module, whose declarations it checks, and of the
// standard library. What is of other modules is unknown.
type sourceImports struct {
	fset   *token.FileSet
	std    types.Importer
	loaded map[string]*types.Package
}

func (s *sourceImports) Import(path string) (*types.Package, error) {
	dir, ours := strings.CutPrefix(path, "github.com/arqnet/kcp/")
	if !ours {
		return s.std.Import(path)
	}
	if p := s.loaded[path]; p != nil {
		return p, nil
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, name := range names {
		built, err := build.Default.MatchFile(filepath.Split(name))
		if err != nil {
			return nil, err
		}
		if !built || strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(s.fset, name, nil, 0)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	config := types.Config{Importer: s, IgnoreFuncBodies: true, Error: func(error) {}}
	p, _ := config.Check(path, s.fset, files, nil)
	if s.loaded == nil {
		s.loaded = make(map[string]*types.Package)
	}
	s.loaded[path] = p
	return p, nil
}

// noImports finds no package.
type noImports struct{}

func (noImports) Import(path string) (*types.Package, error) {
	return nil, fmt.Errorf("%s is not loaded", path)
}

// prefixes are what the names of the root's files begin with that are not of the state
// machine (ARCHITECTURE.md).
var prefixes = []string{"session", "conn", "endpoint", "border", "shared", "group", "listener", "dial", "config", "errors", "stats", "deadline", "doc"}

// The session compiles without the layers above it: it knows no Conn and no Endpoint.
// Config does, as its Tracer gets one.
func TestSessionStandsAlone(t *testing.T) {
	t.Parallel()
	ofSources(t)
	sequential(t)
	files := machineFiles(t)
	for _, name := range rootFiles(t) {
		if strings.HasPrefix(name, "session_") || slices.Contains([]string{"shared.go", "config.go", "config_validate.go", "errors.go", "stats.go"}, name) {
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
