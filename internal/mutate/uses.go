package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// Uses of figures, which are constants that a test compares with RULES.md: that test does
// not notice that nothing uses one.

// modulePath is what the paths of the repository's packages begin with. The rest is the
// folder.
const modulePath = "github.com/arqnet/kcp"

// typed is a package with its types.
type typed struct {
	set   *token.FileSet
	files map[string]*ast.File // by name, without the folder
	info  types.Info
	self  *types.Package
}

// listed is what `go list` says of a package.
type listed struct {
	ImportPath, Name, Export string
	GoFiles                  []string
}

// typesIn checks the types of the package in a folder, of whichever module.
func typesIn(dir string) (*typed, error) {
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Name,Export,GoFiles", ".")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list in %s: %w", dir, err)
	}
	exports := make(map[string]string)
	var self listed // the last
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		p := listed{}
		if err := d.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		exports[p.ImportPath], self = p.Export, p
	}
	t := &typed{set: token.NewFileSet(), files: make(map[string]*ast.File)}
	t.info.Uses, t.info.Types = make(map[*ast.Ident]types.Object), make(map[ast.Expr]types.TypeAndValue)
	var files []*ast.File
	for _, name := range self.GoFiles {
		file, err := parser.ParseFile(t.set, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		t.files[name], files = file, append(files, file)
	}
	imports := importer.ForCompiler(t.set, "gc", func(p string) (io.ReadCloser, error) { return os.Open(exports[p]) })
	t.self, err = (&types.Config{Importer: imports}).Check(self.ImportPath, t.set, files, &t.info)
	return t, err
}

// constantFolder returns the folder of a constant of the repository, by its path.
func constantFolder(of types.Object) (dir string, ok bool) {
	c, ok := of.(*types.Const)
	if !ok || c.Pkg() == nil || c.Parent() != c.Pkg().Scope() {
		return "", false
	}
	rest, ok := strings.CutPrefix(c.Pkg().Path(), modulePath)
	return path.Join(".", strings.TrimPrefix(rest, "/")), ok
}

// typesOf returns the package in a folder.
func (a *analysis) typesOf(dir string) (t *typed, err error) {
	t = a.packages[dir]
	if t == nil {
		t, err = typesIn(dir)
		a.packages[dir] = t
	}
	return t, err
}

// figuresIn returns the constants that tests in a folder compare with RULES.md, by folder
// and name.
func figuresIn(dir string) (found map[[2]string]bool, err error) {
	page, err := os.ReadFile("RULES.md")
	if err != nil {
		return nil, err
	}
	paths, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	found = make(map[[2]string]bool)
	for _, name := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		folders := make(map[string]string) // of what the file imports, by name
		for _, spec := range file.Imports {
			if rest, ok := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), modulePath+"/"); ok {
				folders[path.Base(rest)] = rest
			}
		}
		says := rowsOf(file, string(page))
		ast.Inspect(file, func(n ast.Node) bool {
			list, ok := n.(*ast.CompositeLit)
			if ok && list.Type != nil && types.ExprString(list.Type) == "[]rulebook.Figure" {
				for _, e := range list.Elts {
					if row, ok := e.(*ast.CompositeLit); ok && len(row.Elts) == 3 && says[types.ExprString(row.Elts[0])] {
						addFigures(found, filepath.ToSlash(dir), folders, row.Elts[2])
					}
				}
			}
			return true
		})
	}
	return found, nil
}

// rowsOf returns the strings of a file that RULES.md has, as literals and as names of
// constants.
func rowsOf(file *ast.File, page string) map[string]bool {
	says := make(map[string]bool)
	has := func(e ast.Expr) bool {
		lit, ok := e.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return false
		}
		text, err := strconv.Unquote(lit.Value)
		return err == nil && strings.Contains(page, text)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			for i, name := range n.Names {
				if i < len(n.Values) && has(n.Values[i]) {
					says[name.Name] = true
				}
			}
		case *ast.BasicLit:
			if has(n) {
				says[n.Value] = true
			}
		}
		return true
	})
	return says
}

// addFigures adds what an expression of a test is made of.
func addFigures(found map[[2]string]bool, dir string, folders map[string]string, e ast.Expr) {
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if of, ok := n.X.(*ast.Ident); ok && folders[of.Name] != "" {
				found[[2]string{folders[of.Name], n.Sel.Name}] = true
			}
			return false
		case *ast.Ident:
			found[[2]string{dir, n.Name}] = true
		}
		return true
	})
}

// isFigure reports whether a constant of a folder is a figure: a test there, or in the
// folder of the function that uses it, compares it.
func (a *analysis) isFigure(dir, name, user string) (bool, error) {
	for _, at := range []string{dir, user, "."} {
		if a.figures[at] == nil {
			found, err := figuresIn(at)
			if err != nil {
				return false, err
			}
			a.figures[at] = found
		}
		if a.figures[at][[2]string{dir, name}] {
			return true, nil
		}
	}
	return false, nil
}

// usesIn returns two changes for each use of a figure in a function: to four times its
// value, and to a fourth. What the length of an array or another constant is made of has
// to be a constant. The changes of the constants themselves, twice and half of them, are
// returned with the changes of their uses.
func (a *analysis) usesIn(in body) (changes []change, err error) {
	add := func(e ast.Expr, id *ast.Ident) {
		dir, ok := constantFolder(in.t.info.Uses[id])
		if !ok {
			return
		}
		all, failed := a.constantsOf(dir)
		if failed != nil {
			err = failed
		}
		figure, ok := all[id.Name]
		if !ok {
			return
		}
		if dir == filepath.Dir(in.path) {
			changes = append(changes, figure.times(2), figure.times(-2))
		}
		promised, failed := a.isFigure(dir, id.Name, filepath.Dir(in.path))
		if failed != nil {
			err = failed
		}
		convert, ok := conversion(in.t, in.file, e)
		if !ok || !promised {
			return
		}
		for i, what := range []string{"times 4", "divided by 4"} {
			c := in.change(use, "use of "+id.Name+" "+what, e)
			c.part, c.convert = i, convert
			changes = append(changes, c)
		}
	}
	var visit func(n ast.Node) bool
	visit = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GenDecl:
			return n.Tok != token.CONST
		case *ast.ArrayType:
			ast.Inspect(n.Elt, visit)
			return false
		case *ast.SelectorExpr:
			add(n, n.Sel)
			ast.Inspect(n.X, visit)
			return false
		case *ast.Ident:
			add(n, n)
		}
		return true
	}
	ast.Inspect(in.f.Body, visit)
	return changes, err
}

// conversion returns the type that a use has to be converted to, as it is written in
// the file; nothing if the constant has it by itself.
func conversion(t *typed, file *ast.File, e ast.Expr) (typ string, ok bool) {
	of := t.info.Types[e].Type
	if id, isIdent := e.(*ast.Ident); of == nil && isIdent {
		of = t.info.Uses[id].Type()
	}
	if basic, ok := of.(*types.Basic); ok && basic.Info()&types.IsUntyped != 0 {
		of = types.Default(of)
	}
	if named, isNamed := of.(*types.Named); isNamed && named.Obj().Pkg() != t.self {
		for _, spec := range file.Imports {
			if strings.Trim(spec.Path.Value, `"`) == named.Obj().Pkg().Path() && spec.Name == nil {
				return types.TypeString(of, (*types.Package).Name), true
			}
		}
		return "", true // the constant has the type, or the file could not use it
	}
	basic, ok := of.Underlying().(*types.Basic)
	if !ok || basic.Info()&types.IsNumeric == 0 {
		return "", false
	}
	return types.TypeString(of, types.RelativeTo(t.self)), true
}
