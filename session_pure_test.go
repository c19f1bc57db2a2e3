package kcp

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sessionFiles returns the files of the session's state machine, the type session, with
// what it shares with its endpoint.
func sessionFiles(t *testing.T) []string {
	t.Helper()
	return slices.DeleteFunc(rootFiles(t), func(name string) bool {
		return !strings.HasPrefix(name, "session_") && name != "shared.go"
	})
}

// above is what lies above a session, as its files see it: names that Config and events
// mention, and that have nothing in them.
const above = `type (
	Conn struct{}
	Endpoint struct{}
	Listener struct{}
	Group struct{}
	Stream struct{}
)
`

// The session compiles with the state machine of the protocol, the settings, errors and
// figures, and nothing else.
func TestSessionStandsAlone(t *testing.T) {
	t.Parallel()
	ofSources(t)
	sequential(t)
	fset := token.NewFileSet()
	imports := &sourceImports{fset: fset, std: importer.ForCompiler(fset, "gc", nil)}
	for bad, found := range map[string]bool{
		"": false,
		"func (c *session) bad() { c.host.now() }":             false,
		"func (c *session) bad(of *Conn) { of.mu.Lock() }":     true,
		"func (c *session) bad() { c.io.canRead.Broadcast() }": true,
	} {
		errs := sessionAlone(t, fset, imports, bad)
		require.Equal(t, found, len(errs) > 0, "%s: %v", bad, errs)
	}
}

// sessionAlone returns what the files of the session cannot be compiled for without
// those above them.
func sessionAlone(t *testing.T, fset *token.FileSet, imports types.Importer, more string) (errs []string) {
	t.Helper()
	files := append(machineFiles(t), sessionFiles(t)...)
	files = append(files, "config.go", "config_validate.go", "errors.go", "stats.go")
	_, _, all := typeCheck(t, fset, imports, files, above+more)
	for _, err := range all {
		e := err.(types.Error)
		switch name := fset.Position(e.Pos).Filename; name {
		case "config.go", "config_validate.go", "errors.go", "stats.go": // methods of what is above
		default:
			errs = append(errs, e.Error())
		}
	}
	return errs
}

// impure is what no file of the session imports.
var impure = []string{"context", "log/slog", "os", "runtime", "sync"}

// The session has no lock, clock, goroutine, channel or socket.
func TestSessionIsPure(t *testing.T) {
	t.Parallel()
	ofSources(t)
	finds(t, sessionImpurities,
		`import "sync"`,
		`import "time"; var _ = time.Now()`,
		`import "time"; var _ = time.AfterFunc`,
		`import "net"; var _ = net.ListenPacket`,
		"func (c *session) bad() { go c.compact() }",
		"func (c *session) bad() { select {} }",
		"type bad struct { c chan int }",
	)
}

// sessionImpurities returns what of that a file of the session has, or more.
func sessionImpurities(t *testing.T, more string) (found []string) {
	t.Helper()
	fset := token.NewFileSet()
	files := make(map[string]*ast.File)
	for _, name := range sessionFiles(t) {
		file, err := parser.ParseFile(fset, name, nil, 0)
		require.NoError(t, err)
		files[name] = file
	}
	file, err := parser.ParseFile(fset, "more.go", "package kcp\n"+more, 0)
	require.NoError(t, err)
	files["more.go"] = file
	for name, file := range files {
		report := func(n ast.Node, what string) {
			found = append(found, fmt.Sprintf("%v: %s", fset.Position(n.Pos()), what))
		}
		for _, imp := range file.Imports {
			path, _ := strconv.Unquote(imp.Path.Value)
			if slices.Contains(impure, path) && !(path == "sync" && name == "shared.go") { // the pool of buffers
				report(imp, path)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt, *ast.SelectStmt, *ast.SendStmt, *ast.ChanType:
				report(n, "concurrency")
			case *ast.SelectorExpr:
				if of, ok := n.X.(*ast.Ident); ok && slices.Contains(acts, of.Name+"."+n.Sel.Name) {
					report(n, of.Name+"."+n.Sel.Name)
				}
			}
			return true
		})
	}
	return found
}

// acts are functions of packages that the session imports for their types.
var acts = []string{
	"time.Now", "time.Since", "time.Until", "time.After", "time.AfterFunc", "time.NewTimer", "time.NewTicker", "time.Sleep",
	"net.Dial", "net.Listen", "net.ListenPacket", "net.ListenUDP", "net.DialUDP", "net.InterfaceByName", "net.Interfaces",
}
