package kcp

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// coreFiles are the state machine. They know no clock, socket, lock or
// goroutine.
var coreFiles = []string{
	"kcp.go", "segment.go", "input.go", "flush.go", "rto.go", "congestion.go", "ring.go", "signal.go", "settings.go",
	"pacer.go", "delivery_rate.go", "congestion_cubic.go", "congestion_bbr.go", "ack.go", "ack_repeat.go", "recovery.go", "redundancy.go",
	"pieces.go", "blackhole.go",
}

// coreImports is all that the state machine may import.
var coreImports = []string{"encoding/binary", "errors", "fmt", "io", "math", "slices"}

func TestCoreIsPure(t *testing.T) {
	for _, name := range coreFiles {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, nil, 0)
		require.NoError(t, err)
		for _, imp := range file.Imports {
			path, _ := strconv.Unquote(imp.Path.Value)
			require.Contains(t, coreImports, path, "%s imports %s", name, path)
		}
		for _, d := range file.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.VAR {
				for _, spec := range g.Specs {
					for _, id := range spec.(*ast.ValueSpec).Names {
						require.True(t, strings.HasPrefix(id.Name, "Err"),
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
	for _, name := range coreFiles {
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
				t.Errorf("%s: use seq.diff", fset.Position(n.Pos()))
			}
			return true
		})
	}
}

// layers are the packages of the module that a package may import; what is not
// listed may import none.
var layers = map[string][]string{
	"":                    {"internal/udp", "internal/fec", "crypt"},
	"crypt":               nil,
	"internal/fec":        nil,
	"cmd/kcp":             {"", "crypt", "netsim"},
	"internal/udp":        nil,
	"internal/selfsigned": nil,
	"netsim":              nil,
	"fuzz":                {""},
	"examples":            {"", "netsim", "examples/internal/lab", "internal/selfsigned"},
}

func TestImportsRunDownwards(t *testing.T) {
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

// Importing the package starts nothing: there is no init, and no package
// variable holds more than a constant would.
func TestFieldNote31ImportStartsNothing(t *testing.T) {
	walkSources(t, func(dir, path string, file *ast.File) {
		if strings.HasPrefix(dir, "cmd") || strings.HasPrefix(dir, "examples") {
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
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil || strings.HasPrefix(d.Name(), ".") {
				return filepath.SkipDir // another module
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
