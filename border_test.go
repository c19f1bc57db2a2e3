package kcp

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
	"testing"
)

// Files of sessions use no fields that files of endpoints declare, and the
// reverse. What they ask of each other is in border.go.
func TestBorder(t *testing.T) {
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
				if name := declared + ":" + field.Name(); !slices.Contains(crossingsLeft, name) {
					found = append(found, fmt.Sprintf("%s uses %s", fset.Position(id.Pos()), name))
				}
			}
			return true
		})
	}
	return found
}

// crossingsLeft are the fields that are still used across the border, to be removed.
var crossingsLeft = []string{
	"endpoint.go:shards",
	"endpoint.go:socket",
	"endpoint_incast.go:epoch",
	"endpoint_incast.go:level",
	"endpoint_incast.go:turns",
	"endpoint_incast_turns.go:shut",
	"endpoint_incast_turns.go:window",
	"endpoint_readturn.go:possible",
	"endpoint_socket.go:failures",
	"endpoint_socket.go:incast",
	"endpoint_socket.go:lead",
	"session.go:path",
	"session.go:sending",
	"session_incast.go:light",
	"session_incast.go:turn",
}
