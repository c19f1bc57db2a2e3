package budget

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// Releasers returns the functions that may release the lock mu of a type, and lock it
// again before they return: what was known of the state before need not be so any more.
// held are those that run with the lock held, free those that lock it themselves, each
// with the function through which it does so. They are
//
//   - functions that unlock it, or a sync.Locker, and lock it further down;
//   - functions that wait on a sync.Cond of a struct without a mutex of its own;
//   - functions that name one of held, be it to call it or not, and be it a method of an
//     interface that a type of the package has.
//
// A function whose first use of the lock is to lock it runs without it, all others run
// with it. So does a function literal within them, unless it is the function of a go
// statement, an argument of unlocked or AfterFunc, or locks the lock. What is called
// through other packages, and through values of function types, is not seen.
//
// last are functions after which their callers do not go on: they release it as the last
// thing, or only while a panic unwinds the stack.
func (p *Package) Releasers(of string, last ...string) (held, free []string) {
	s := &lockScan{Package: p, of: p.named(of), released: make(map[*types.Func]bool)}
	for _, file := range p.files {
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			if fn := p.info.Defs[f.Name].(*types.Func); !slices.Contains(last, functionName(fn)) {
				s.add(fn, f.Body)
			}
		}
	}
	for more := true; more; {
		more = s.spread()
	}
	return s.found(true), s.found(false)
}

// found returns the functions that release the lock and run with it held, or without it.
func (s *lockScan) found(held bool) (names []string) {
	seen := make(map[*types.Func]bool)
	for _, u := range s.units {
		if u.releases && u.held == held && !seen[u.fn] {
			seen[u.fn] = true
			names = append(names, u.String())
		}
	}
	slices.Sort(names)
	return names
}

// spread marks the functions that name one which is marked, and reports whether there
// were some.
func (s *lockScan) spread() (more bool) {
	for _, u := range s.units {
		if u.releases && u.held {
			s.released[u.fn] = true
		}
	}
	for _, u := range s.units {
		if i := slices.IndexFunc(u.names, func(f *types.Func) bool { return s.released[f] }); !u.releases && i >= 0 {
			u.releases, u.through, more = true, u.names[i], true
		}
	}
	return more
}

// lockScan is the functions of a package as Releasers sees them.
type lockScan struct {
	*Package
	of       *types.Named
	units    []*unit
	released map[*types.Func]bool // they release it, and run with it held
}

// unit is a function, or a function literal in it that runs apart from it.
type unit struct {
	fn       *types.Func
	names    []*types.Func // functions of the package that it names
	held     bool          // it runs with the lock held
	releases bool
	through  *types.Func // the first of names that does so; nil: it does so itself
}

func (u *unit) String() string {
	if u.through == nil {
		return functionName(u.fn)
	}
	return functionName(u.fn) + " by " + functionName(u.through)
}

// add adds the body of fn, or of a literal in it.
func (s *lockScan) add(fn *types.Func, body *ast.BlockStmt) {
	u := &unit{fn: fn, held: true}
	s.units = append(s.units, u)
	locked, unlocked := token.NoPos, token.NoPos // the first of each
	var visit func(ast.Node) bool
	visit = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			s.apart(fn, n.Call)
			return false
		case *ast.CallExpr:
			switch name := calledName(n); {
			case name == "unlocked" || name == "AfterFunc":
				ast.Inspect(n.Fun, visit)
				s.apart(fn, n)
				return false
			case slices.ContainsFunc(n.Args, s.otherLock):
				return false
			}
		case *ast.FuncLit:
			if s.locks(n.Body) {
				s.add(fn, n.Body)
				return false
			}
		case *ast.DeferStmt:
			switch s.operation(n.Call) {
			case "Unlock": // at the end
				return false
			case "Lock":
				u.releases = u.releases || unlocked.IsValid()
				return false
			}
		case *ast.SelectorExpr:
			switch s.operation(n) {
			case "Lock":
				u.releases = u.releases || unlocked.IsValid()
				if !locked.IsValid() {
					locked, u.held = n.Pos(), unlocked.IsValid()
				}
			case "Unlock":
				unlocked = n.Pos()
			case "Wait":
				u.releases = true
			}
		case *ast.Ident:
			if f, ok := s.info.Uses[n].(*types.Func); ok {
				u.names = append(u.names, s.behind(f.Origin())...)
			}
		}
		return true
	}
	ast.Inspect(body, visit)
}

// apart adds the function literals of a call, which run without the lock.
func (s *lockScan) apart(fn *types.Func, call *ast.CallExpr) {
	ast.Inspect(call, func(n ast.Node) bool {
		f, ok := n.(*ast.FuncLit)
		if ok && s.locks(f.Body) {
			s.add(fn, f.Body)
		}
		return !ok
	})
}

// calledName returns the name of the function that is called, without what it is of.
func calledName(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

// locks reports whether a body locks the lock, not counting the literals in it.
func (s *lockScan) locks(body *ast.BlockStmt) (found bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		found = found || ok && s.operation(sel) == "Lock"
		_, literal := n.(*ast.FuncLit)
		return !literal
	})
	return found
}

// operation returns what an expression does with the lock: Lock, Unlock or Wait.
func (s *lockScan) operation(e ast.Expr) string {
	if call, ok := e.(*ast.CallExpr); ok {
		e = call.Fun
	}
	sel, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	switch name, of := sel.Sel.Name, s.info.Types[sel.X].Type; {
	case of == nil:
	case name == "Wait" && strings.HasSuffix(of.String(), "sync.Cond"):
		if in := s.structOf(sel.X); in == nil || !hasMutex(in) {
			return name
		}
	case (name == "Lock" || name == "Unlock") && (of.String() == "sync.Locker" || s.isLock(sel.X)):
		return name
	}
	return ""
}

// otherLock reports whether an expression is another lock than the type's, to be
// passed as a sync.Locker.
func (s *lockScan) otherLock(e ast.Expr) bool {
	if sel, ok := e.(*ast.SelectorExpr); ok && sel.Sel.Name == "L" {
		in := s.structOf(sel.X)
		return in != nil && hasMutex(in)
	}
	address, ok := e.(*ast.UnaryExpr)
	return ok && isMutex(s.info.Types[address.X].Type) && !s.isLock(address.X)
}

// isLock reports whether an expression is the field mu of the type, or of one that is
// declared as it.
func (s *lockScan) isLock(e ast.Expr) bool {
	sel, ok := e.(*ast.SelectorExpr)
	in := s.structOf(e)
	return ok && sel.Sel.Name == "mu" && in != nil && in == s.of.Underlying()
}

// structOf returns the struct that an expression is a field of; nil: it is not a field.
func (s *lockScan) structOf(e ast.Expr) *types.Struct {
	if sel, ok := e.(*ast.SelectorExpr); ok && s.info.Selections[sel] != nil {
		in, _ := deref(s.info.Selections[sel].Recv()).Underlying().(*types.Struct)
		return in
	}
	return nil
}

func hasMutex(in *types.Struct) bool {
	for f := range in.Fields() {
		if isMutex(f.Type()) {
			return true
		}
	}
	return false
}

func isMutex(t types.Type) bool {
	return t != nil && (t.String() == "sync.Mutex" || t.String() == "sync.RWMutex")
}

// behind returns the functions of the package that may run when f is called.
func (s *lockScan) behind(f *types.Func) (all []*types.Func) {
	recv := f.Signature().Recv()
	if recv == nil || !types.IsInterface(recv.Type()) {
		return []*types.Func{f}
	}
	in := recv.Type().Underlying().(*types.Interface)
	for _, name := range s.types.Scope().Names() {
		t, ok := s.types.Scope().Lookup(name).(*types.TypeName)
		if !ok || types.IsInterface(t.Type()) || !types.Implements(types.NewPointer(t.Type()), in) {
			continue
		}
		if m, _, _ := types.LookupFieldOrMethod(t.Type(), true, s.types, f.Name()); m != nil {
			all = append(all, m.(*types.Func).Origin())
		}
	}
	return all
}

// functionName returns a function as Type.method or function.
func functionName(f *types.Func) string {
	if recv := f.Signature().Recv(); recv != nil {
		if n, ok := types.Unalias(deref(recv.Type())).(*types.Named); ok {
			return n.Obj().Name() + "." + f.Name()
		}
	}
	return f.Name()
}
