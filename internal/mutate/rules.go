package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// rule is a row of RULES.md.
type rule struct {
	text  string
	code  map[string][]string // functions that decide, by file
	tests []string
}

var span = regexp.MustCompile("`([^`]+)`")

// readRules reads the rows of which the text matches a pattern.
func readRules(path, pattern string) (rules []rule, err error) {
	match, err := regexp.Compile(pattern)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if !strings.HasPrefix(line, "| ") || len(cells) != 4 || !match.MatchString(cells[0]) {
			continue
		}
		r := rule{text: strings.TrimSpace(cells[0]), code: make(map[string][]string)}
		decides, _, _ := strings.Cut(cells[2], " from ") // what follows are callers
		for _, m := range span.FindAllStringSubmatch(decides, -1) {
			if file, names, ok := strings.Cut(m[1], ":"); ok {
				for name := range strings.SplitSeq(names, ",") {
					r.code[file] = append(r.code[file], strings.TrimSpace(name))
				}
			}
		}
		for _, m := range span.FindAllStringSubmatch(cells[3], -1) {
			r.tests = append(r.tests, m[1])
		}
		if len(r.code) > 0 && len(r.tests) > 0 {
			rules = append(rules, r)
		}
	}
	if len(rules) == 0 {
		return nil, fmt.Errorf("%s has no rule that matches %q", path, pattern)
	}
	return rules, nil
}

// testFunc is a test, or a fuzz test, of which the seeds are run.
var testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)

// findTests returns the folders in which each test is.
func findTests(root string) (map[string][]string, error) {
	tests := make(map[string][]string)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range testFunc.FindAllStringSubmatch(string(text), -1) {
			if dir := "./" + filepath.ToSlash(filepath.Dir(path)); !slices.Contains(tests[m[1]], dir) {
				tests[m[1]] = append(tests[m[1]], dir)
			}
		}
		return err
	})
	return tests, err
}

// analysis finds changes in the sources.
type analysis struct {
	operands  bool              // conditions are taken out, too
	packages  map[string]*typed // by folder
	constants map[string]constants
	figures   map[string]map[[2]string]bool // by the folder of the test
}

// changesOf returns all changes of what the rules name. A place that several rules
// name is changed once, and tested by the tests of all of them.
func (a *analysis) changesOf(rules []rule) (changes []change, err error) {
	a.packages, a.constants = make(map[string]*typed), make(map[string]constants)
	a.figures = make(map[string]map[[2]string]bool)
	index := make(map[string]int)
	for _, r := range rules {
		for file, names := range r.code {
			found, err := a.changesIn(file, names)
			if err != nil {
				return nil, err
			}
			for _, c := range found {
				key := c.key()
				at, known := index[key]
				if !known {
					at = len(changes)
					index[key] = at
					changes = append(changes, c)
				}
				for _, t := range r.tests {
					if !slices.Contains(changes[at].tests, t) {
						changes[at].tests = append(changes[at].tests, t)
					}
				}
			}
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return strings.Compare(a.String(), b.String()) })
	return changes, nil
}

// changesIn returns the changes of functions of a file, of the constants that they use
// or are, and of those uses.
func (a *analysis) changesIn(path string, names []string) (changes []change, err error) {
	all, err := a.constantsOf(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	t, err := a.typesOf(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	source, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if c, ok := all[name]; ok {
			changes = append(changes, c.times(2), c.times(-2))
		}
	}
	file := t.files[filepath.Base(path)]
	if file == nil { // of another system
		return changes, nil
	}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Body == nil || !slices.Contains(names, f.Name.Name) {
			continue
		}
		in := body{t: t, path: path, source: source, file: file, f: f}
		found := in.checks()
		if a.operands {
			found = append(found, in.operands()...)
		}
		uses, err := a.usesIn(in)
		if err != nil {
			return nil, err
		}
		changes = append(changes, append(found, uses...)...)
	}
	return changes, nil
}

// body is a function that a rule names.
type body struct {
	t      *typed
	path   string
	source []byte
	file   *ast.File
	f      *ast.FuncDecl
}

// change returns a change of an expression.
func (b body) change(kind kind, what string, e ast.Expr) change {
	at, end := b.t.set.Position(e.Pos()), b.t.set.Position(e.End())
	return change{
		file: b.path, name: b.f.Name.Name, line: at.Line, what: what, kind: kind,
		text: string(b.source[at.Offset:end.Offset]), from: at.Offset, to: end.Offset,
	}
}

// checks returns the conditions under which the function, or a loop, is left early.
func (b body) checks() (changes []change) {
	ast.Inspect(b.f.Body, func(n ast.Node) bool {
		if n, ok := n.(*ast.IfStmt); ok && leaves(n.Body) && n.Else == nil && n.Init == nil {
			changes = append(changes, b.change(check, "check removed", n.Cond))
		}
		return true
	})
	return changes
}

// operands returns the operands of the conditions.
func (b body) operands() (changes []change) {
	ast.Inspect(b.f.Body, func(n ast.Node) bool {
		if n, ok := n.(*ast.BinaryExpr); ok && (n.Op == token.LAND || n.Op == token.LOR) {
			for _, e := range []ast.Expr{n.X, n.Y} {
				c := b.change(operand, "operand removed", e)
				c.or = n.Op == token.LOR
				c.what += ": " + strings.Join(strings.Fields(c.text), " ")
				changes = append(changes, c)
			}
		}
		return true
	})
	return changes
}

// leaves reports whether a block ends by leaving the function or the loop.
func leaves(b *ast.BlockStmt) bool {
	if len(b.List) == 0 {
		return false
	}
	switch s := b.List[len(b.List)-1].(type) {
	case *ast.ReturnStmt:
		return true
	case *ast.BranchStmt:
		return s.Tok == token.CONTINUE || s.Tok == token.BREAK
	}
	return false
}

// constant is a numeric constant of a package.
type constant struct {
	file, name     string
	line, from, to int // of its value
}

// constants are the constants of a folder, by name.
type constants map[string]constant

// times returns the change of a constant to n times its value, or to one of -n
// parts of it.
func (c constant) times(n int) change {
	ch := change{file: c.file, name: c.name, line: c.line, from: c.from, to: c.to}
	if ch.what, ch.put = "doubled", "(%s) * 2"; n < 0 {
		ch.what, ch.put = "halved", "(%s) / 2"
	}
	return ch
}

// constantsOf returns the constants of a folder that are numbers with a value of
// their own. Flags, codes and sizes of formats are not figures of rules.
func (a *analysis) constantsOf(dir string) (constants, error) {
	if all, ok := a.constants[dir]; ok {
		return all, nil
	}
	all := make(constants)
	a.constants[dir] = all
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			for _, spec := range g.Specs {
				v := spec.(*ast.ValueSpec)
				if len(v.Names) != 1 || len(v.Values) != 1 || v.Type != nil || !isNumber(v.Values[0]) {
					continue
				}
				from, to := set.Position(v.Values[0].Pos()), set.Position(v.Values[0].End())
				all[v.Names[0].Name] = constant{path, v.Names[0].Name, from.Line, from.Offset, to.Offset}
			}
		}
	}
	return all, nil
}

// isNumber reports whether a value is an expression of numbers, without iota,
// strings and hexadecimal codes.
func isNumber(e ast.Expr) bool {
	number := true
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			number = number && n.Name != "iota" && n.Name != "true" && n.Name != "false"
		case *ast.BasicLit:
			number = number && (n.Kind == token.INT || n.Kind == token.FLOAT) && !strings.HasPrefix(n.Value, "0x")
		case *ast.CallExpr, *ast.CompositeLit:
			number = false
		}
		return number
	})
	return number
}
