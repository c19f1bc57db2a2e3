package budget

import (
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

const root = "../.."

// The figures of testdata/budgets.txt are no higher than their lines, and not much lower.
func TestBudgets(t *testing.T) {
	t.Parallel()
	testenv.OfSources(t)
	table, err := os.ReadFile("testdata/budgets.txt")
	require.NoError(t, err)
	lines, err := Parse(string(table))
	require.NoError(t, err)
	figures, err := Texts(root)
	require.NoError(t, err)
	p, err := Load(root)
	require.NoError(t, err)
	maps.Copy(figures, p.figures())
	figures["go-doc"], err = Docs(root)
	require.NoError(t, err)
	for _, line := range lines {
		require.Contains(t, figures, line.Name, "a line without a figure")
	}
	wrong := Check(lines, figures)
	require.Empty(t, wrong, "internal/budget/testdata/budgets.txt:\n%s", strings.Join(wrong, "\n"))
}

// figures returns the figures of the root package.
func (p *Package) figures() map[string]int {
	fields, bools := p.Fields("Conn")
	return map[string]int{
		"Conn-methods":   p.Methods("Conn"),
		"Stream-methods": p.Methods("Stream"),
		"Conn-fields":    fields,
		"Conn-bools":     bools,
		"KCP-used":       p.Used("KCP"),
	}
}

// Figures above their lines are found, those that have fallen, and those without a line.
func TestCheck(t *testing.T) {
	t.Parallel()
	lines, err := Parse("# a comment\n\nlines 1000 lines of code\nfiles 20  files of code\n")
	require.NoError(t, err)
	require.Equal(t, []Line{{"lines", 1000, "lines of code"}, {"files", 20, "files of code"}}, lines)
	for _, test := range []struct {
		figures map[string]int
		wrong   []string
	}{
		{map[string]int{"lines": 1000, "files": 20}, nil},
		{map[string]int{"lines": 990}, nil},
		{map[string]int{"lines": 989}, []string{"lines has fallen; write: lines                 989  lines of code"}},
		{map[string]int{"lines": 1001}, []string{"lines: 1001, which is 1 above its line: lines                1000  lines of code"}},
		{map[string]int{"files": 19}, []string{"files has fallen; write: files                  19  files of code"}},
		{map[string]int{"bytes": 3}, []string{"no line: bytes                   3  ..."}},
	} {
		require.Equal(t, test.wrong, Check(lines, test.figures))
	}
	for _, bad := range []string{"lines 1000", "lines many of code", "lines 1 a\nlines 2 b"} {
		_, err := Parse(bad)
		require.Error(t, err, bad)
	}
}
