package kcp

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
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

// The state machine compiles without the layers above it.
func TestMachineStandsAlone(t *testing.T) {
	t.Parallel()
	ofSources(t)
	sequential(t)
	fset := token.NewFileSet()
	imports := &sourceImports{fset: fset, std: importer.ForCompiler(fset, "gc", nil)}
	_, _, errs := typeCheck(t, fset, imports, machineFiles(t), "func bad(c *Conn) {}")
	require.Len(t, errs, 1, "what the machine cannot know has been found in it, or is not found")
	require.Contains(t, errs[0].Error(), "session_more.go")
}

// The layers above call methods of the state machine, exported ones or those of
// sessionPort, and touch no field. Nor do the layers above the session touch its fields.
func TestSessionsUseThePort(t *testing.T) {
	t.Parallel()
	ofSources(t)
	findsAll(t, portViolations,
		"func bad1(k *KCP) { _ = k.rcv }",
		"func bad2(k *KCP) { k.signals = nil }",
		"func bad3(k *KCP) { k.emit() }",
		"func bad4(k *KCP) int { return k.sender().bytes }",
		"func bad5(s *sendSegment) []byte { return s.buf }",
		"func bad6(c *Conn) { c.session.shared = nil }",
	)
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

// opaque are the machine and the parts of it that sessions see, but not their fields.
var opaque = []string{"KCP", "sendSegment", "sender", "receiver"}

// portViolations returns where a file of another layer, or more, passes by the
// port.
func portViolations(t *testing.T, more string) (places []string) {
	t.Helper()
	fset := token.NewFileSet()
	// What comes from other packages is unknown to the check, and no field of the
	// machine.
	info, _, _ := typeCheck(t, fset, noImports{}, rootFiles(t), more)
	machine := machineFiles(t)
	port := reflect.TypeFor[sessionPort]()
	for sel, s := range info.Selections {
		at := fset.Position(sel.Pos())
		recv := s.Recv().String()
		_, of, _ := strings.Cut(recv, "kcp.")
		if of == "session" && s.Kind() == types.FieldVal && (at.Filename == "session_more.go" || !strings.HasPrefix(at.Filename, "session_")) {
			places = append(places, fmt.Sprintf("%v: %s", at, sel.Sel.Name))
		}
		if slices.Contains(machine, at.Filename) || !slices.Contains(opaque, of) {
			continue
		}
		_, listed := port.MethodByName(sel.Sel.Name)
		if s.Kind() == types.FieldVal || of == "KCP" && !listed && !sel.Sel.IsExported() {
			places = append(places, fmt.Sprintf("%v: %s", at, sel.Sel.Name))
		}
	}
	return places
}

// machineImports is all that the state machine may import besides packages of the module
// that are as pure: these have no lock, clock, socket or goroutine.
var machineImports = []string{"encoding/binary", "errors", "fmt", "io", "math", "slices"}

// pure are the packages of the module that the state machine imports.
var pure = []string{
	"congestion", "stats", "trace",
	"internal/container", "internal/netpath", "internal/recovery", "internal/serial",
	"internal/streams",
}

const module = "github.com/arqnet/kcp"

// The state machine has no goroutine, channel, lock or clock, and no package variable but
// errors. Distances of sequence numbers are taken by serial.Number alone.
func TestMachineIsPure(t *testing.T) {
	ofSources(t)
	for _, name := range machineFiles(t) {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, nil, 0)
		require.NoError(t, err)
		for _, imp := range file.Imports {
			path, _ := strconv.Unquote(imp.Path.Value)
			of, ours := strings.CutPrefix(path, module+"/")
			require.True(t, ours && slices.Contains(pure, of) || slices.Contains(machineImports, path), "%s imports %s", name, path)
		}
		for _, d := range file.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.VAR {
				for _, spec := range g.Specs {
					for _, id := range spec.(*ast.ValueSpec).Names {
						require.True(t, id.Name == "_" || strings.HasPrefix(id.Name, "Err"),
							"%s has the package variable %s", name, id.Name)
					}
				}
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt, *ast.SelectStmt, *ast.SendStmt, *ast.ChanType:
				t.Errorf("%s: concurrency in the state machine", fset.Position(n.Pos()))
			case *ast.CallExpr:
				fun, _ := n.Fun.(*ast.Ident)
				if fun == nil || fun.Name != "int32" || name == "segment.go" {
					break
				}
				if arg, _ := n.Args[0].(*ast.BinaryExpr); arg != nil && arg.Op == token.SUB {
					t.Errorf("%s: use serial.Number.Diff", fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
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
