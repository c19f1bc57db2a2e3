package budget

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"strings"
)

// Package is a type-checked package.
type Package struct {
	fset  *token.FileSet
	files []*ast.File
	info  types.Info
	types *types.Package
}

// Load returns the package in a folder, with its imports as the go command has compiled
// them.
func Load(dir string) (*Package, error) {
	names, err := sources(dir)
	if err != nil {
		return nil, err
	}
	listed, err := run(dir, "go", "list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}", ".")
	if err != nil {
		return nil, err
	}
	exports := make(map[string]string)
	for line := range strings.Lines(string(listed)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), "\t")
		exports[path] = file
	}
	p := newPackage()
	for _, name := range names {
		file, err := parser.ParseFile(p.fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		p.files = append(p.files, file)
	}
	return p, p.check(importer.ForCompiler(p.fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("%s is not compiled", path)
		}
		return os.Open(exports[path])
	}))
}

func newPackage() *Package {
	return &Package{fset: token.NewFileSet(), info: types.Info{
		Selections: make(map[*ast.SelectorExpr]*types.Selection),
		Uses:       make(map[*ast.Ident]types.Object),
		Defs:       make(map[*ast.Ident]types.Object),
		Types:      make(map[ast.Expr]types.TypeAndValue),
	}}
}

func (p *Package) check(imports types.Importer) (err error) {
	p.types, err = (&types.Config{Importer: imports}).Check("kcp", p.fset, p.files, &p.info)
	return err
}

// named returns a type of the package.
func (p *Package) named(name string) *types.Named {
	return p.types.Scope().Lookup(name).Type().(*types.Named)
}

// Methods returns how many methods a type declares.
func (p *Package) Methods(name string) int { return p.named(name).NumMethods() }

// Fields returns how many fields a type has by value, and how many of them are bool. A
// field that is a struct of the package counts as the fields of that.
func (p *Package) Fields(name string) (all, bools int) {
	return p.fieldsOf(p.named(name))
}

func (p *Package) fieldsOf(of types.Type) (all, bools int) {
	if a, ok := of.(*types.Array); ok {
		of = a.Elem()
	}
	s, ok := of.Underlying().(*types.Struct)
	if n, named := types.Unalias(of).(*types.Named); !ok || named && n.Obj().Pkg() != p.types {
		return 0, 0
	}
	for i := range s.NumFields() {
		f := s.Field(i).Type()
		below, belowBools := p.fieldsOf(f)
		all, bools = all+max(below, 1), bools+belowBools
		if b, ok := f.Underlying().(*types.Basic); ok && b.Kind() == types.Bool {
			bools++
		}
	}
	return all, bools
}

// Used returns how many methods of a type files of layers other than the machine use.
func (p *Package) Used(name string) int {
	of, used := p.named(name), make(map[types.Object]bool)
	for sel, s := range p.info.Selections {
		machine := layerOf(p.fset.Position(sel.Pos()).Filename) == "machine"
		if !machine && s.Kind() != types.FieldVal && types.Unalias(deref(s.Recv())) == of {
			used[s.Obj()] = true
		}
	}
	return len(used)
}

// deref returns what a pointer leads to, and other types as they are.
func deref(t types.Type) types.Type {
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		return p.Elem()
	}
	return t
}
