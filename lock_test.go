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

// Rules of locks that can be read off the source:
//
//   - A function whose name ends in Locked is called by others of that kind, or by
//     functions that take a lock.
//   - Methods of Conn that do not take Conn.mu want it held. So exported ones
//     take it, unless they touch nothing that it guards; functions of other types
//     that call one of them take it; and no method calls one that takes it.
//
// The order in which locks are taken is not checked, nor what is done after a
// function has released one.
func TestLocksAreHeld(t *testing.T) {
	t.Parallel()
	ofSources(t)
	findsAll(t, lockViolations,
		"func (e *Endpoint) Bad1(c *Conn) { e.addLocked(c) }",
		"func (c *Conn) Bad2() bool { return c.session.Over() }",
		"func (c *Conn) Bad3() bool { return c.io.filling }",
		"func (c *Conn) bad4() { c.Stats() }",
		"func (e *Endpoint) bad5(c *Conn) { c.session.End(nil) }",
		"func (e *Endpoint) bad6(c *Conn) { c.stopDeadlines() }",
	)
}

// unguarded is what of a Conn, or of its session, may be used without Conn.mu: what does
// not change, and what is atomic or has another lock.
var unguarded = []string{"ep", "ends", "mu", "writing", "LocalAddr", "RemoteAddr", "Conv", "opError",
	"wakeAt", "wakeIndex", "wakeHash", "Seed", "Init", "Accept",
	"Extended", "HalfOpen", "Evictable", "PacketKeys", "ResetBy", "Weight", "SetConv", "Addresses", "Encode", "Place"}

// lockExempt are functions that the rules do not see through.
var lockExempt = []string{
	"notifier.Broadcast",    // Conn.mu is held
	"Conn.writePackets",     // Conn.mu is not held
	"sessionHost.WorkTLS",   // entry.Conv does not change
	".newConn",              // no other goroutine knows the session yet
	"sessionHost.NewStream", // Conn.mu is held, as for all of a sessionHost
	"streamOwner.Readable",  // the same
	"streamOwner.Writable",  // the same
	"Endpoint.remove",       // retire calls it, which holds Conn.mu
}

// lockScan is the package as the rules see it.
type lockScan struct {
	fset    *token.FileSet
	info    *types.Info
	lockers map[string]bool // methods of Conn that take Conn.mu
	methods map[string]bool // methods of Conn
	broken  []string
}

// lockViolations returns where more, or a file of the package, breaks a rule.
func lockViolations(t *testing.T, more string) []string {
	t.Helper()
	s := lockScan{fset: token.NewFileSet(), lockers: make(map[string]bool), methods: make(map[string]bool)}
	info, files, _ := typeCheck(t, s.fset, noImports{}, rootFiles(t), more)
	s.info = info
	var functions []*ast.FuncDecl
	for _, file := range files {
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			functions = append(functions, f)
			if receiverOf(f) == "Conn" {
				s.lockers[f.Name.Name] = s.takes(f, "Conn")
				s.methods[f.Name.Name] = true
			}
		}
	}
	for _, f := range functions {
		if !slices.Contains(lockExempt, receiverOf(f)+"."+f.Name.Name) {
			s.check(f)
		}
	}
	return s.broken
}

// receiverOf returns the name of the type that f is a method of.
func receiverOf(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	x := f.Recv.List[0].Type
	if star, ok := x.(*ast.StarExpr); ok {
		x = star.X
	}
	if id, ok := x.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}

// owner returns the type of the package whose field or method sel is.
func (s *lockScan) owner(sel *ast.SelectorExpr) string {
	selection := s.info.Selections[sel]
	if selection == nil {
		return ""
	}
	_, name, _ := strings.Cut(strings.TrimPrefix(selection.Recv().String(), "*"), ".")
	return name
}

// takes reports whether f takes a lock named mu, of the given type if that is not
// empty. Conn.await calls what it is given with Conn.mu held.
func (s *lockScan) takes(f *ast.FuncDecl, of string) (found bool) {
	ast.Inspect(f.Body, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		found = found || ok && sel.Sel.Name == "await" && s.owner(sel) == "Conn"
		if !ok || sel.Sel.Name != "Lock" && sel.Sel.Name != "RLock" {
			return true
		}
		mu, ok := sel.X.(*ast.SelectorExpr)
		found = found || ok && mu.Sel.Name == "mu" && (of == "" || s.owner(mu) == of)
		return true
	})
	return found
}

// check looks at what f uses.
func (s *lockScan) check(f *ast.FuncDecl) {
	held := strings.HasSuffix(f.Name.Name, "Locked") || s.takes(f, "")
	method := receiverOf(f) == "Conn"
	free := make(map[ast.Expr]bool) // sessions of which something unguarded is used
	heldConn := s.takes(f, "Conn") || method && !f.Name.IsExported() || strings.HasSuffix(f.Name.Name, "Locked")
	ast.Inspect(f.Body, func(n ast.Node) bool {
		if _, ok := n.(*ast.GoStmt); ok {
			return false // runs without the locks of f
		}
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		name, owner := sel.Sel.Name, s.owner(sel)
		free[sel.X] = slices.Contains(unguarded, name)
		if strings.HasSuffix(name, "Locked") && !held && !method && receiverOf(f) != "session" {
			s.report(sel, "%s is called without a lock", name)
		}
		if owner != "Conn" || slices.Contains(unguarded, name) {
			return true
		}
		switch {
		case s.lockers[name] && method && !f.Name.IsExported() && !s.takes(f, ""):
			s.report(sel, "%s takes the lock, which is held", name)
		case s.lockers[name] || heldConn || free[sel]:
		case name == "session":
			s.report(sel, "the session is used without the lock")
		case s.methods[name] && !ast.IsExported(name):
			s.report(sel, "%s is called without the lock", name)
		case method:
			s.report(sel, "%s is used without the lock", name)
		}
		return true
	})
}

func (s *lockScan) report(at ast.Node, format string, args ...any) {
	s.broken = append(s.broken, fmt.Sprintf("%v: %s", s.fset.Position(at.Pos()), fmt.Sprintf(format, args...)))
}
