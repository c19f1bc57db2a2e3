package rulebook

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

// narrowTypes are the numbers that may come around, by how the sources spell them.
var narrowTypes = map[string]bool{
	"uint8": true, "byte": true, "int8": true, "uint16": true, "int16": true, "uint32": true, "int32": true, "rune": true,
	"atomic.Uint32": true, "atomic.Int32": true, "seq": true, "serial.Number": true,
}

// Narrow returns the fields of structs, the variables of packages and the types in a
// tree that hold numbers of 32 bits or less, in order: each as folder, type and name.
// Types that have constants are enumerations, and left out. So are tests, slices of
// bytes, and the folders that skip names.
func Narrow(tree fs.FS, skip ...string) (found [][3]string, err error) {
	parsed := make(map[string][]*ast.File)
	err = fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || slices.Contains(skip, name)):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		parsed[path.Dir(name)] = append(parsed[path.Dir(name)], file)
		return err
	})
	for folder, files := range parsed {
		found = append(found, narrowOf(folder, files)...)
	}
	slices.SortFunc(found, func(a, b [3]string) int { return slices.Compare(a[:], b[:]) })
	return slices.Compact(found), err
}

// narrowOf is Narrow for the files of a package.
func narrowOf(folder string, files []*ast.File) (found [][3]string) {
	enumerations := enumerationsOf(files)
	add := func(of ast.Expr, name string) {
		if narrowIn(of) {
			found = append(found, [3]string{folder, types.ExprString(of), name})
		}
	}
	within := "" // the type that is being declared
	for _, file := range files {
		for _, d := range file.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.VAR {
				for _, s := range g.Specs {
					for _, name := range s.(*ast.ValueSpec).Names {
						add(s.(*ast.ValueSpec).Type, name.Name)
					}
				}
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				if within = n.Name.Name; !enumerations[within] {
					add(n.Type, "type "+within)
				}
			case *ast.StructType:
				for _, field := range n.Fields.List {
					for _, name := range field.Names {
						add(field.Type, within+"."+name.Name)
					}
				}
			}
			return true
		})
	}
	return found
}

// enumerationsOf returns the types of which there are constants.
func enumerationsOf(files []*ast.File) map[string]bool {
	all := make(map[string]bool)
	for _, file := range files {
		for _, d := range file.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.CONST {
				for _, s := range g.Specs {
					if id, ok := s.(*ast.ValueSpec).Type.(*ast.Ident); ok {
						all[id.Name] = true
					}
				}
			}
		}
	}
	return all
}

// narrowIn reports whether a type has a narrow number in it, except for slices of bytes.
func narrowIn(of ast.Expr) bool {
	switch of := of.(type) {
	case *ast.Ident, *ast.SelectorExpr:
		return narrowTypes[types.ExprString(of)]
	case *ast.ArrayType:
		return types.ExprString(of.Elt) != "byte" && narrowIn(of.Elt)
	case *ast.MapType:
		return narrowIn(of.Key) || narrowIn(of.Value)
	case *ast.StarExpr:
		return narrowIn(of.X)
	case *ast.ChanType:
		return narrowIn(of.Value)
	}
	return false
}

// numberRows reads a table of numbers: folder, type, names, how fast they advance, and
// what lasts how long, between bars. It returns the rows by what Narrow finds, and those
// that lack something.
func numberRows(table string) (rows map[[3]string]int, bad []string) {
	rows = make(map[[3]string]int)
	for line := range strings.Lines(table) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		cells := strings.Split(line, "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if len(cells) != 5 || slices.Contains(cells, "") {
			bad = append(bad, line)
			continue
		}
		for name := range strings.SplitSeq(cells[2], ",") {
			rows[[3]string{cells[0], cells[1], strings.TrimSpace(name)}]++
		}
	}
	return rows, bad
}

// CheckNumbers compares a table of numbers with what Narrow has found. It returns what is
// wrong.
func CheckNumbers(table string, found [][3]string) (wrong []string) {
	rows, wrong := numberRows(table)
	for _, f := range found {
		if rows[f] != 1 {
			wrong = append(wrong, "not in one row: "+strings.Join(f[:], " | "))
		}
		delete(rows, f)
	}
	for f := range maps.Keys(rows) {
		wrong = append(wrong, "not in the sources: "+strings.Join(f[:], " | "))
	}
	slices.Sort(wrong)
	return wrong
}
