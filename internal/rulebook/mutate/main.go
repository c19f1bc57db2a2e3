// Mutate changes the code at random, a place at a time, and runs tests against each
// change. One that no test notices shows what they do not compare. The tree stays as it
// is: the go command gets the changed file by its flag -overlay.
//
//	go run ./internal/rulebook/mutate [-seed N] [-n N] [-only I,J] [-test COMMAND]... FILE|FOLDER...
//
// The same seed and files give the same changes. In a command, which begins with "go
// test", {pkg} is the folder of the changed file. The commands run until one fails.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

func main() {
	log.SetFlags(0)
	seed := flag.Uint64("seed", 1, "of the choice of places")
	n := flag.Int("n", 60, "how many places to change")
	only := flag.String("only", "", "numbers of the changes to try, with commas; all if empty")
	list := flag.Bool("list", false, "list the changes, and run nothing")
	var commands []string
	flag.Func("test", "a `command` that has to fail (default go test -short -failfast {pkg})", func(c string) error {
		commands = append(commands, c)
		return nil
	})
	flag.Parse()
	if commands == nil {
		commands = []string{"go test -short -failfast -vet=off {pkg}"}
	}
	places, err := placesOf(flag.Args())
	if err != nil {
		log.Fatal(err)
	}
	r := rand.New(rand.NewPCG(*seed, 0))
	r.Shuffle(len(places), func(i, j int) { places[i], places[j] = places[j], places[i] })
	noticed, tried := 0, 0
	for i, p := range places[:min(*n, len(places))] {
		if *only != "" && !slices.Contains(strings.Split(*only, ","), strconv.Itoa(i)) {
			continue
		}
		fmt.Printf("%d %s:%d: %s", i, p.file.name, p.line, p.what)
		if !*list {
			by, err := p.noticedBy(commands)
			if err != nil {
				log.Fatal(err)
			}
			if tried++; by != "" {
				noticed++
			}
			fmt.Printf(": noticed by %q", by)
		}
		fmt.Println()
	}
	fmt.Printf("noticed: %d of %d\n", noticed, tried)
}

// source is a parsed file.
type source struct {
	name string
	fset *token.FileSet
	tree *ast.File
}

// place is where a file may be changed.
type place struct {
	file   *source
	line   int
	what   string
	change func() (undo func())
}

// elsewhere matches files that this system does not compile, tests, and testing programs.
var elsewhere = regexp.MustCompile(`_(test|windows|darwin|freebsd|bsd|other|js|plan9|unix_other)\.go$`)

// placesOf returns the places of files and of the folders' files.
func placesOf(args []string) (places []place, err error) {
	for _, arg := range args {
		names := []string{arg}
		if filepath.Ext(arg) != ".go" {
			if names, err = filepath.Glob(filepath.Join(arg, "*.go")); err != nil {
				return nil, err
			}
		}
		for _, name := range names {
			if elsewhere.MatchString(name) {
				continue
			}
			s := &source{name: name, fset: token.NewFileSet()}
			if s.tree, err = parser.ParseFile(s.fset, name, nil, parser.ParseComments); err != nil {
				return nil, err
			}
			places = append(places, s.places()...)
		}
	}
	return places, nil
}

// others are the operators that may stand for each.
var others = map[token.Token][]token.Token{
	token.LSS: {token.LEQ, token.GEQ}, token.LEQ: {token.LSS, token.GTR},
	token.GTR: {token.GEQ, token.LEQ}, token.GEQ: {token.GTR, token.LSS},
	token.EQL: {token.NEQ}, token.NEQ: {token.EQL}, token.ADD: {token.SUB}, token.SUB: {token.ADD},
	token.LAND: {token.LOR}, token.LOR: {token.LAND}, token.MUL: {token.ADD},
}

// places returns the places of a file: operators, numbers, conditions and statements in
// its functions.
func (s *source) places() (all []place) {
	add := func(n ast.Node, what string, change func() func()) {
		all = append(all, place{s, s.fset.Position(n.Pos()).Line, what, change})
	}
	for _, d := range s.tree.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Body == nil || f.Name.Name == "String" {
			continue
		}
		ast.Inspect(f.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BinaryExpr:
				if l, ok := n.X.(*ast.BasicLit); ok && l.Kind == token.STRING {
					break
				}
				for _, op := range others[n.Op] {
					add(n, fmt.Sprintf("%v becomes %v", n.Op, op), set(&n.Op, op))
				}
			case *ast.BasicLit:
				if n.Kind == token.INT && !strings.HasPrefix(n.Value, "0x") {
					add(n, n.Value+" grows by 1", set(&n.Value, "("+n.Value+"+1)"))
				}
			case *ast.IfStmt:
				never := &ast.BinaryExpr{X: &ast.ParenExpr{X: n.Cond}, Op: token.LAND, Y: ast.NewIdent("(1 == 2)")}
				add(n, "the condition is false", set(&n.Cond, ast.Expr(never)))
			case *ast.BlockStmt:
				for i, statement := range n.List {
					if removable(statement) {
						rest := slices.Delete(slices.Clone(n.List), i, i+1)
						add(statement, "the statement is left out", set(&n.List, rest))
					}
				}
			}
			return true
		})
	}
	return all
}

// set returns what sets a variable, and returns what sets it back.
func set[T any](at *T, to T) func() func() {
	return func() func() {
		was := *at
		*at = to
		return func() { *at = was }
	}
}

// removable reports whether code compiles without a statement, mostly.
func removable(statement ast.Stmt) bool {
	switch s := statement.(type) {
	case *ast.ExprStmt, *ast.IncDecStmt:
		return true
	case *ast.AssignStmt:
		for _, value := range s.Rhs {
			id, ok := value.(*ast.Ident)
			if ok && id.Name != "nil" && id.Name != "true" && id.Name != "false" {
				return false // it may be declared and not used then
			}
		}
		return s.Tok != token.DEFINE
	}
	return false
}

// failure finds the name of a test that has failed, or what else was wrong.
var failure = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)|^(panic: .*)|(\[build failed\])`)

// noticedBy makes the change, and returns which test of the commands notices it: none if
// it is empty.
func (p *place) noticedBy(commands []string) (by string, err error) {
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	var text bytes.Buffer
	undo := p.change()
	err = format.Node(&text, p.file.fset, p.file.tree)
	undo()
	if err != nil {
		return "", err
	}
	path, err := filepath.Abs(p.file.name)
	if err != nil {
		return "", err
	}
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	table, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
	if err = errors.Join(err, os.WriteFile(changed, text.Bytes(), 0o600), os.WriteFile(overlay, table, 0o600)); err != nil {
		return "", err
	}
	for _, c := range commands {
		c = strings.ReplaceAll(c, "{pkg}", "./"+filepath.Dir(p.file.name))
		c = strings.Replace(c, "go test", "go test -timeout 10m -overlay "+overlay, 1)
		out, err := exec.Command("sh", "-c", c).CombinedOutput()
		if err == nil {
			continue
		}
		if m := failure.FindSubmatch(out); m != nil {
			return string(bytes.Join(m[1:], nil)), nil
		}
		return "the command", nil
	}
	return "", nil
}
