package rulebook

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// phrase is an expression that comments, texts and pages do not use.
type phrase struct {
	pattern, unless *regexp.Regexp // unless may be nil: matches that it matches are allowed
	instead         string
}

// words is a table of phrases, and of places that may have them.
type words struct {
	phrases []phrase
	allowed map[string]bool // "file: text" to whether it was found
}

// parseWords reads a table: rows of a phrase, a pattern that allows it (or nothing), and
// what to say instead; and rows of "allow", a file, a text and the reason.
func parseWords(table string) (*words, error) {
	w := &words{allowed: make(map[string]bool)}
	for i, line := range strings.Split(table, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		cells := strings.Split(line, " | ")
		if len(cells) == 4 && cells[0] == "allow" {
			w.allowed[cells[1]+": "+cells[2]] = false
			continue
		}
		if len(cells) != 3 {
			return nil, fmt.Errorf("line %d: want a phrase, what allows it and what to say instead", i+1)
		}
		p := phrase{instead: cells[2]}
		var err error
		// A phrase may continue in the next line.
		if p.pattern, err = regexp.Compile(`(?i)\b(` + strings.ReplaceAll(cells[0], " ", `\s+`) + `)`); err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		if cells[1] != "" {
			if p.unless, err = regexp.Compile(`(?i)` + cells[1]); err != nil {
				return nil, fmt.Errorf("line %d: %w", i+1, err)
			}
		}
		w.phrases = append(w.phrases, p)
	}
	return w, nil
}

// CheckWords returns where the Go files and pages of a tree have phrases of the table: in
// comments and texts of all but tests, and outside of code in pages. It leaves out
// folders and files of the given names.
func CheckWords(tree fs.FS, table string, leaveOut ...string) (found []string, err error) {
	w, err := parseWords(table)
	if err != nil {
		return nil, err
	}
	err = fs.WalkDir(tree, ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case slices.Contains(leaveOut, path) || slices.Contains(leaveOut, d.Name()):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case strings.HasSuffix(path, ".md"):
			text, err := fs.ReadFile(tree, path)
			found = append(found, w.check(path, 1, prose(string(text)))...)
			return err
		case strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go"):
			of, err := w.checkGo(tree, path)
			found = append(found, of...)
			return err
		}
		return nil
	})
	for place, used := range w.allowed {
		if !used {
			found = append(found, "allowed, and not there: "+place)
		}
	}
	slices.Sort(found)
	return found, err
}

// checkGo checks the comments and texts of a Go file.
func (w *words) checkGo(tree fs.FS, path string) (found []string, err error) {
	source, err := fs.ReadFile(tree, path)
	if err != nil {
		return nil, err
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, group := range file.Comments {
		found = append(found, w.check(path, set.Position(group.Pos()).Line, group.Text())...)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if text, ok := n.(*ast.BasicLit); ok && text.Kind == token.STRING {
			if s, err := strconv.Unquote(text.Value); err == nil {
				found = append(found, w.check(path, set.Position(text.Pos()).Line, s)...)
			}
		}
		return true
	})
	return found, nil
}

// check returns the phrases in a text that begins in a line of a file.
func (w *words) check(path string, line int, text string) (found []string) {
	for _, p := range w.phrases {
		for _, at := range p.pattern.FindAllStringIndex(text, -1) {
			match := withNeighbours(text, at[0], at[1])
			place := path + ": " + match
			if _, ok := w.allowed[place]; ok {
				w.allowed[place] = true
				continue
			}
			if p.unless == nil || !p.unless.MatchString(match) {
				found = append(found, fmt.Sprintf("%s:%d: %q: %s", path, line+strings.Count(text[:at[0]], "\n"), match, p.instead))
			}
		}
	}
	return found
}

// withNeighbours returns text[from:to] with the words beside it, in one line.
func withNeighbours(text string, from, to int) string {
	before, after := strings.Fields(text[:from]), text[to:]
	if len(before) > 0 && text[from-1] <= ' ' {
		from = strings.LastIndex(text[:from], before[len(before)-1])
	}
	if next := strings.Fields(after); len(next) > 0 && after[0] <= ' ' {
		to += strings.Index(after, next[0]) + len(next[0])
	}
	return strings.Trim(strings.Join(strings.Fields(text[from:to]), " "), " .,:;()*\"")
}

// prose returns a page with blanks in place of its code.
func prose(page string) string {
	codeBlock := regexp.MustCompile("(?ms)^ *```.*?^ *```")
	codeSpan := regexp.MustCompile("`[^`\n]*`")
	notBreak := regexp.MustCompile(`[^\n]`)
	page = codeBlock.ReplaceAllStringFunc(page, func(block string) string { return notBreak.ReplaceAllString(block, "") })
	return codeSpan.ReplaceAllString(page, "``")
}
