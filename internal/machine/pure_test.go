package machine

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// sources returns the files of the package, without its tests.
func sources(t *testing.T) (files []string) {
	t.Helper()
	all, err := filepath.Glob("*.go")
	require.NoError(t, err)
	return slices.DeleteFunc(all, func(name string) bool { return strings.HasSuffix(name, "_test.go") })
}

// machineImports is all that the state machine may import besides packages of the module
// that are as pure: these have no lock, clock, socket or goroutine.
var machineImports = []string{"encoding/binary", "errors", "fmt", "io", "iter", "math", "slices"}

// pure are the packages of the module that the state machine imports.
var pure = []string{
	"congestion", "stats", "trace",
	"internal/container", "internal/netpath", "internal/recovery",
	"internal/streams", "internal/wire",
}

// module is the path of the module.
const module = "github.com/arqnet/kcp"

// The state machine has no goroutine, channel, lock or clock, and no package variable but
// errors. Distances of sequence numbers are taken by container.Serial alone.
func TestMachineIsPure(t *testing.T) {
	testenv.OfSources(t)
	for _, name := range sources(t) {
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
				if fun == nil || fun.Name != "int32" {
					break
				}
				if arg, _ := n.Args[0].(*ast.BinaryExpr); arg != nil && arg.Op == token.SUB {
					t.Errorf("%s: use container.Serial.Diff", fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
}
