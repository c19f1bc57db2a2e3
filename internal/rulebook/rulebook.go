// Package rulebook compares the figures that RULES.md and WIRE.md promise with the
// constants of the code. Tests spell a figure as the document does, so neither
// changes without the other.
package rulebook

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Figure is a number of a rule, and what the code has for it: a part of the rule's
// rows or paragraph that no other rule has, the figure as one of them spells it, such as
// "25 ms" or "srtt/16", and the constant, a number or a time.Duration.
type Figure [3]any

// Check compares figures with a page of the repository, such as RULES.md.
func Check(t *testing.T, page string, all []Figure) {
	t.Helper()
	path, err := find(page)
	if err != nil {
		t.Skip(err) // the test runs without the sources
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	rules := split(string(text))
	for _, f := range all {
		if err := f.check(rules); err != nil {
			t.Errorf("%s: %v", page, err)
		}
	}
}

// find returns the path of a page, in a folder above the test's.
func find(page string) (string, error) {
	for up := "."; len(up) < 20; up = filepath.Join("..", up) {
		_, noModule := os.Stat(filepath.Join(up, "go.mod"))
		_, noPage := os.Stat(filepath.Join(up, page))
		if noModule == nil && noPage == nil {
			return filepath.Join(up, page), nil
		}
	}
	return "", fmt.Errorf("there is no %s", page)
}

// split returns the rows of tables, the items of lists and the paragraphs of a
// page, each in one line.
func split(text string) (rules []string) {
	begins := true
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		row := strings.HasPrefix(line, "|")
		switch {
		case line == "":
			begins = true
			continue
		case begins, row, strings.HasPrefix(line, "- "), strings.HasPrefix(line, "* "):
			rules = append(rules, line)
		default:
			rules[len(rules)-1] += " " + line
		}
		begins = row
	}
	return rules
}

// check compares a figure with the rule that it is from, which says it once.
func (f Figure) check(rules []string) error {
	rule, says := f[0].(string), f[1].(string)
	rows, said := 0, 0
	for _, r := range rules {
		if strings.Contains(r, rule) {
			rows++
			if spells(r, says) {
				said++
			}
		}
	}
	switch {
	case rows == 0:
		return fmt.Errorf("no rule has %q", rule)
	case said == 0:
		return fmt.Errorf("the rule %q does not say %q", rule, says)
	case said > 1:
		return fmt.Errorf("%d rows of the rule %q say %q", said, rule, says)
	}
	want, err := parse(says)
	if err != nil {
		return err
	}
	is, err := number(f[2])
	if err != nil {
		return err
	}
	if math.Abs(want-is) > 1e-9*math.Abs(want) {
		return fmt.Errorf("the rule %q says %s, the code has %v", rule, says, f[2])
	}
	return nil
}

// spells reports whether a rule has a figure that is not a part of a longer one.
func spells(rule, figure string) bool {
	whole := regexp.MustCompile(`(?:^|[^\w.^])` + regexp.QuoteMeta(figure) + `(?:$|[^\w.]|\.(?:\D|$))`)
	return whole.MatchString(rule)
}

var units = map[string]float64{
	"": 1, "%": 0.01, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
	"µs": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9, "h": 3600e9,
}

// parse returns the first number of a figure: times in nanoseconds, sizes in bytes.
// "srtt/16" is 16, as the code divides by it, and "10 to 20 s" is 10 s.
func parse(figure string) (float64, error) {
	spelled := regexp.MustCompile(`(\d+(?: \d{3})*(?:\.\d+)?)(?:\^(\d+))?(?:/(\d+))?(?:ths?)?` +
		`(?: to [\d.]+)?(?: (KiB|MiB|GiB|µs|ms|s|min|h|%))?(?:[^\w.]|$)`)
	m := spelled.FindStringSubmatch(figure)
	if m == nil {
		return 0, fmt.Errorf("%q has no figure", figure)
	}
	n, err := strconv.ParseFloat(strings.ReplaceAll(m[1], " ", ""), 64)
	if err != nil {
		return 0, err
	}
	if m[2] != "" {
		power, _ := strconv.Atoi(m[2])
		n = math.Pow(n, float64(power))
	}
	if m[3] != "" {
		part, _ := strconv.Atoi(m[3])
		n /= float64(part)
	}
	return n * units[m[4]], nil
}

// number returns a value of the code as parse does.
func number(v any) (float64, error) {
	switch n := reflect.ValueOf(v); {
	case n.CanInt():
		return float64(n.Int()), nil
	case n.CanUint():
		return float64(n.Uint()), nil
	case n.CanFloat():
		return n.Float(), nil
	}
	return 0, fmt.Errorf("%v is a %T", v, v)
}
