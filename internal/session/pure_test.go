package session

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// The session has no lock, clock, goroutine, channel or socket.
func TestSessionIsPure(t *testing.T) {
	t.Parallel()
	testenv.OfSources(t)
	require.Empty(t, impurities(t, ""))
	for _, bad := range []string{`import "sync"`, `import "time"; var _ = time.Now()`, `import "net"; var _ = net.ListenPacket`,
		"func (c *Session) bad() { go c.compact() }", "func (c *Session) bad() { select {} }", "type bad struct { c chan int }"} {
		require.Len(t, impurities(t, bad), 1, bad)
	}
}

// impure are packages that no file of the session imports, and functions of those that it
// imports for their types.
var impure = []string{
	`"context"`, `"log/slog"`, `"os"`, `"runtime"`, `"sync"`,
	"time.Now", "time.Since", "time.Until", "time.After", "time.AfterFunc", "time.NewTimer", "time.NewTicker", "time.Sleep",
	"net.Dial", "net.Listen", "net.ListenPacket", "net.ListenUDP", "net.DialUDP", "net.InterfaceByName", "net.Interfaces",
}

// impurities returns what of that a file of the package has, or more.
func impurities(t *testing.T, more string) (found []string) {
	t.Helper()
	fset := token.NewFileSet()
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, name := range append(files, "more.go") {
		var source any
		switch {
		case name == "more.go":
			source = "package session\n" + more
		case strings.HasSuffix(name, "_test.go"):
			continue
		}
		file, err := parser.ParseFile(fset, name, source, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			what := ""
			switch n := n.(type) {
			case *ast.GoStmt, *ast.SelectStmt, *ast.SendStmt, *ast.ChanType:
				found = append(found, fmt.Sprintf("%v: concurrency", fset.Position(n.Pos())))
			case *ast.ImportSpec:
				what = n.Path.Value
			case *ast.SelectorExpr:
				if of, ok := n.X.(*ast.Ident); ok {
					what = of.Name + "." + n.Sel.Name
				}
			}
			if slices.Contains(impure, what) && !(what == `"sync"` && name == "shared.go") { // the pool of buffers
				found = append(found, fmt.Sprintf("%v: %s", fset.Position(n.Pos()), what))
			}
			return true
		})
	}
	return found
}
