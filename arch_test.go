package kcp

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
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
	_, _, errs := typeCheck(t, fset, imports, machineFiles(t), "")
	require.Empty(t, errs)
	_, _, errs = typeCheck(t, fset, imports, machineFiles(t), "func bad(c *Conn) {}")
	require.NotEmpty(t, errs, "what the machine cannot know has not been found")
}

// The layers above call methods of the state machine, exported ones or those of
// sessionPort, and touch no field.
func TestSessionsUseThePort(t *testing.T) {
	t.Parallel()
	ofSources(t)
	finds(t, portViolations,
		"func bad(c *Conn) { _ = c.kcp.rcv }",
		"func bad(c *Conn) { k := c.kcp; k.signals = nil }",
		"func bad(c *Conn) { c.kcp.emit() }",
		"func bad(c *Conn) int { return c.kcp.sender().bytes }",
		"func bad(s *sendSegment) []byte { return s.buf }",
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

// machineImports is all that the state machine may import. What is of the module has
// no lock, clock, socket or goroutine either.
var machineImports = []string{
	"encoding/binary", "errors", "fmt", "io", "math", "slices",
	"github.com/arqnet/kcp/congestion",
	"github.com/arqnet/kcp/internal/amplification",
	"github.com/arqnet/kcp/internal/bufpool",
	"github.com/arqnet/kcp/internal/deliveryrate",
	"github.com/arqnet/kcp/internal/limited",
	"github.com/arqnet/kcp/internal/pacing",
	"github.com/arqnet/kcp/internal/pmtud",
	"github.com/arqnet/kcp/internal/reassembly",
	"github.com/arqnet/kcp/internal/copies",
	"github.com/arqnet/kcp/internal/recovery",
	"github.com/arqnet/kcp/internal/delayedack",
	"github.com/arqnet/kcp/internal/replyrhythm",
	"github.com/arqnet/kcp/internal/ring",
	"github.com/arqnet/kcp/internal/serial",
	"github.com/arqnet/kcp/internal/streams",
	"github.com/arqnet/kcp/stats",
	"github.com/arqnet/kcp/trace",
}

func TestMachineIsPure(t *testing.T) {
	ofSources(t)
	for _, name := range machineFiles(t) {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, nil, 0)
		require.NoError(t, err)
		for _, imp := range file.Imports {
			path, _ := strconv.Unquote(imp.Path.Value)
			require.Contains(t, machineImports, path, "%s imports %s", name, path)
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
			}
			return true
		})
	}
}

// Distances of sequence numbers are taken by the methods of seq alone.
func TestSequenceArithmeticInOnePlace(t *testing.T) {
	ofSources(t)
	for _, name := range machineFiles(t) {
		if name == "segment.go" {
			continue
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 1 {
				return true
			}
			fun, _ := call.Fun.(*ast.Ident)
			arg, _ := call.Args[0].(*ast.BinaryExpr)
			if fun != nil && fun.Name == "int32" && arg != nil && arg.Op == token.SUB {
				t.Errorf("%s: use serial.Number.Diff", fset.Position(n.Pos()))
			}
			return true
		})
	}
}

// layers are the packages of the module that a package may import; what is not
// listed may import none.
var layers = map[string][]string{
	"": {
		"congestion",
		"crypt",
		"stats",
		"trace",
		"internal/amplification",
		"internal/bufpool",
		"internal/deliveryrate",
		"internal/limited",
		"internal/pacing",
		"internal/replyrhythm",
		"internal/ring",
		"internal/udp",
		"internal/fec",
		"internal/pmtud",
		"internal/wakeq",
		"internal/shed",
		"internal/incast",
		"internal/readturn",
		"internal/admission",
		"internal/closing",
		"internal/pollset",
		"internal/list",
		"internal/lingering",
		"internal/liveness",
		"internal/migration",
		"internal/opening",
		"internal/reroute",
		"internal/inturn",
		"internal/eyeballs", "internal/rendezvous",
		"internal/neterr",
		"internal/fairqueue", "internal/longestqueue", "internal/netblock", "internal/loglimit",
		"internal/packetkeys",
		"internal/protect",
		"internal/handshake",
		"internal/compatibility",
		"internal/reassembly",
		"internal/serial",
		"internal/streams",
		"internal/datagrams",
		"internal/callqueue",
		"internal/flushes",
		"internal/roundtrip",
		"internal/delayedack",
		"internal/takeover",
		"internal/copies",
		"internal/recovery",
	},
	"congestion":                 nil,
	"internal/deliveryrate":      {"congestion"},
	"internal/bufpool":           nil,
	"internal/limited":           {"stats"},
	"internal/pacing":            nil,
	"internal/replyrhythm":       nil,
	"internal/ring":              nil,
	"crypt":                      nil,
	"internal/fec":               nil,
	"internal/pmtud":             nil,
	"internal/replay":            nil,
	"internal/rightsize":         nil,
	"internal/wakeq":             nil,
	"internal/inturn":            nil,
	"internal/eyeballs":          nil,
	"internal/rendezvous":        nil,
	"internal/neterr":            nil,
	"internal/fairqueue":         {"internal/list", "internal/netblock"},
	"internal/longestqueue":      {"internal/list", "internal/netblock"},
	"internal/netblock":          nil,
	"internal/loglimit":          nil,
	"internal/shed":              nil,
	"internal/incast":            nil,
	"internal/readturn":          nil,
	"internal/admission":         {"internal/fec", "internal/handshake", "internal/longestqueue", "internal/netblock", "internal/packetkeys", "internal/protect"},
	"internal/closing":           {"internal/serial"},
	"internal/copies":            {"internal/serial"},
	"internal/recovery":          {"internal/deliveryrate", "internal/serial"},
	"internal/delayedack":        {"internal/replyrhythm", "internal/serial"},
	"internal/roundtrip":         nil,
	"internal/flushes":           {"internal/serial"},
	"internal/callqueue":         nil,
	"internal/datagrams":         {"stats"},
	"internal/list":              nil,
	"internal/lingering":         nil,
	"internal/liveness":          {"internal/reroute"},
	"internal/migration":         nil,
	"internal/opening":           nil,
	"internal/reroute":           {"internal/neterr"},
	"internal/pollset":           {"internal/list"},
	"internal/packetkeys":        {"internal/replay"},
	"internal/protect":           {"internal/packetkeys", "internal/replay", "crypt"},
	"internal/handshake":         {"internal/packetkeys", "internal/protect"},
	"internal/compatibility":     nil,
	"internal/amplification":     {"internal/serial"},
	"internal/reassembly":        {"internal/serial"},
	"internal/serial":            nil,
	"internal/sparse":            nil,
	"internal/streams":           {"internal/list", "internal/rightsize", "internal/serial", "internal/sparse"},
	"compat":                     {"", "internal/compatibility"},
	"cmd/kcp":                    {"", "congestion", "crypt", "netsim", "internal/selfsigned", "qlog", "internal/tracepage", "internal/livepage"},
	"qlog":                       {""},
	"internal/tracepage":         {"qlog", "internal/uplot"},
	"internal/livepage":          {"", "internal/uplot", "stats"},
	"internal/uplot":             nil,
	"internal/udp":               {"internal/neterr", "internal/reroute"},
	"internal/takeover":          {"internal/admission", "internal/protect", "internal/udp"},
	"internal/simsocket":         {"internal/udp", "netsim"},
	"internal/selfsigned":        nil,
	"internal/rulebook/mutate":   nil,
	"internal/rulebook":          nil,
	"internal/rulebook/executed": {"", "internal/selfsigned"},
	"netsim":                     {"internal/udp"},
	"stats":                      nil,
	"trace":                      {"stats"},
	"fuzz":                       {"", "congestion"},
	"examples":                   {"", "netsim", "examples/internal/lab", "examples/upgrade/arena", "examples/upgrade/systemd"},
	"internal/testenv":           {"netsim", "crypt", "internal/udp"},
	"e2e":                        nil,
}

func TestImportsRunDownwards(t *testing.T) {
	t.Parallel()
	ofSources(t)
	const module = "github.com/arqnet/kcp"
	walkSources(t, func(dir, path string, file *ast.File) {
		allowed, known := layers[dir]
		if top, _, _ := strings.Cut(dir, "/"); !known && top == "examples" {
			allowed = layers["examples"]
		}
		for _, imp := range file.Imports {
			p, _ := strconv.Unquote(imp.Path.Value)
			if rest, ours := strings.CutPrefix(p, module); ours {
				rest = strings.TrimPrefix(rest, "/")
				require.True(t, slices.Contains(allowed, rest), "%s imports %s", path, p)
			}
		}
	})
}

// The drawing of packages in ARCHITECTURE.md shows every import of one package of
// the module by another, and no arrow leads upwards.
func TestPackagesAreDrawn(t *testing.T) {
	t.Parallel()
	ofSources(t)
	imports := make(map[string]map[string]bool)
	name := func(dir string) string { return cmp.Or(dir, "kcp") }
	walkSources(t, func(dir, _ string, file *ast.File) {
		for _, spec := range file.Imports {
			p, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			rest, ours := strings.CutPrefix(p, "github.com/arqnet/kcp")
			if !ours {
				continue
			}
			if imports[name(dir)] == nil {
				imports[name(dir)] = make(map[string]bool)
			}
			imports[name(dir)][name(strings.TrimPrefix(rest, "/"))] = true
		}
	})
	text, err := os.ReadFile("ARCHITECTURE.md")
	require.NoError(t, err)
	_, drawing, _ := strings.Cut(string(text), "flowchart TD\n")
	drawing, _, _ = strings.Cut(drawing, "```")
	drawn, above := make(map[string]map[string]bool), make(map[string]bool)
	for line := range strings.Lines(drawing) {
		from, to, ok := strings.Cut(strings.TrimSpace(line), " --> ")
		require.True(t, ok, line)
		drawn[from], above[from] = make(map[string]bool), true
		for p := range strings.SplitSeq(to, " & ") {
			require.False(t, above[p], "the arrow from %s to %s leads upwards", from, p)
			drawn[from][p] = true
		}
	}
	require.Equal(t, imports, drawn)
}

// standardOnly are the packages that import nothing but the standard library.
var standardOnly = []string{
	"congestion",
	"internal/bufpool",
	"internal/pacing",
	"internal/replyrhythm",
	"internal/ring",
	"internal/pmtud",
	"internal/rightsize",
	"internal/wakeq",
	"internal/serial",
	"internal/sparse",
	"internal/shed",
	"internal/incast",
	"internal/readturn",
	"internal/list",
	"internal/lingering",
	"internal/migration",
	"internal/inturn",
	"internal/eyeballs", "internal/rendezvous",
	"internal/neterr",
	"internal/netblock",
	"internal/loglimit",
}

func TestLeavesImportTheStandardLibrary(t *testing.T) {
	t.Parallel()
	ofSources(t)
	found := make(map[string]bool)
	walkSources(t, func(dir, path string, file *ast.File) {
		if !slices.Contains(standardOnly, dir) {
			return
		}
		found[dir] = true
		for _, imp := range file.Imports {
			p, _ := strconv.Unquote(imp.Path.Value)
			first, _, _ := strings.Cut(p, "/")
			require.NotContains(t, first, ".", "%s imports %s", path, p)
		}
	})
	require.Len(t, found, len(standardOnly))
}

// Importing the package starts nothing: there is no init, and no package
// variable holds more than a constant would.
func TestImportStartsNothing(t *testing.T) {
	t.Parallel()
	ofSources(t)
	walkSources(t, func(dir, path string, file *ast.File) {
		if file.Name.Name == "main" || strings.HasPrefix(dir, "examples") { // nothing imports a program
			return
		}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				require.False(t, d.Recv == nil && d.Name.Name == "init", "%s has an init function", path)
			case *ast.GenDecl:
				if d.Tok != token.VAR {
					continue
				}
				for _, spec := range d.Specs {
					if spec.(*ast.ValueSpec).Names[0].Name == "_" {
						continue
					}
					for _, v := range spec.(*ast.ValueSpec).Values {
						requireConstantLike(t, path, v)
					}
				}
			}
		}
	})
	require.Empty(t, goroutinesAtStart, "goroutines of the package before any test")
}

// requireConstantLike accepts errors and values without calls.
func requireConstantLike(t *testing.T, path string, v ast.Expr) {
	ast.Inspect(v, func(n ast.Node) bool {
		if _, lit := n.(*ast.FuncLit); lit {
			return false
		}
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		require.True(t, ok && (sel.Sel.Name == "New" || sel.Sel.Name == "Errorf"), "%s: a package variable calls a function", path)
		return true
	})
}

// goroutinesAtStart holds the stacks of goroutines that were in this package
// before the first test began.
var goroutinesAtStart string

func TestMain(m *testing.M) {
	buf := make([]byte, 1<<20)
	stacks := string(buf[:runtime.Stack(buf, true)])
	for _, stack := range strings.Split(stacks, "\n\n") {
		if strings.Contains(stack, "arqnet/kcp.") && !strings.Contains(stack, "TestMain") {
			goroutinesAtStart += stack
		}
	}
	os.Exit(m.Run())
}

// walkSources calls visit for every Go file of the module that is not a test.
func walkSources(t *testing.T, visit func(dir, path string, file *ast.File)) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." {
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil || strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" {
				return filepath.SkipDir // another module, or none
			}
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(path))
		if dir == "." {
			dir = ""
		}
		visit(dir, path, file)
		return nil
	})
	require.NoError(t, err)
}

// Files of sessions use no fields that files of endpoints declare, and the
// reverse. What they ask of each other is in border.go.
func TestBorder(t *testing.T) {
	t.Parallel()
	ofSources(t)
	finds(t, crossings, "func (c *Conn) bad() { c.ep.closed = true }")
}

// crossings returns where fields are used across the border, in the package with
// the text of more added.
func crossings(t *testing.T, more string) (found []string) {
	t.Helper()
	fset := token.NewFileSet()
	info, files, _ := typeCheck(t, fset, noImports{}, rootFiles(t), more)
	side := func(pos token.Pos) string {
		for _, s := range []string{"session", "endpoint"} {
			if strings.HasPrefix(fset.Position(pos).Filename, s) {
				return s
			}
		}
		return ""
	}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			field, ok := info.Uses[id].(*types.Var)
			if !ok || !field.IsField() || field.Pkg() == nil || field.Pkg().Path() != "kcp" {
				return true
			}
			if from, of := side(id.Pos()), side(field.Pos()); from != "" && of != "" && from != of {
				declared := fset.Position(field.Pos()).Filename
				found = append(found, fmt.Sprintf("%s uses %s:%s", fset.Position(id.Pos()), declared, field.Name()))
			}
			return true
		})
	}
	return found
}

// prefixes are what the names of the root's files begin with that are not of the state
// machine (ARCHITECTURE.md).
var prefixes = []string{"session", "conn", "endpoint", "border", "shared", "group", "listener", "dial", "config", "errors", "stats", "deadline", "doc"}
