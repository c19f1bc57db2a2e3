package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Changes of one expression within another stand within each other, and those of uses
// have the type that the constant has there.
func TestInsertions(t *testing.T) {
	const source = `package p

import "time"

const (
	most  = 3
	wait  = 5 * time.Second
	other = "text"
	tuned = 7
)

func f(n uint8, d time.Duration, s string) int {
	var list [most]int
	if n < tuned && n < most && (d > wait || d > most) && s != other {
		return 1
	}
	return most / len(list)
}
`
	dir := t.TempDir()
	path := filepath.Join(dir, "p.go")
	require.NoError(t, os.WriteFile(path, []byte(source), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "RULES.md"), []byte("| it waits | – |"), 0o600))
	const test = "package p\n\nvar _ = []rulebook.Figure{{\"| it\", 2, most}, {row, 2, 1 * wait}, {\"other\", 2, tuned}}\n\nconst row = \"it waits\"\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "p_test.go"), []byte(test), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module "+modulePath+"\n\ngo 1.25\n"), 0o600))
	t.Chdir(dir)
	a := &analysis{operands: true}
	changes, err := a.changesOf([]rule{{code: map[string][]string{"p.go": {"f"}}, tests: []string{"TestX"}}})
	require.NoError(t, err)
	b := &checks{numbers: make(map[string]int)}
	var some []change
	kinds := make(map[kind]int)
	for _, c := range changes {
		if kinds[c.kind]++; !c.isConstant() && c.part == 0 {
			b.numbers[c.key()] = 9
			some = append(some, c)
		}
	}
	require.Equal(t, map[kind]int{value: 6, check: 1, use: 8, operand: 8}, kinds)
	var text strings.Builder
	done := 0
	for _, in := range b.insertions(some) {
		text.WriteString(source[done:in.at] + in.text)
		done = in.at
	}
	changed := text.String() + source[done:]
	for _, want := range []string{
		"var list [most]int",
		"removedUse(9, 0, (uint8)(most))",
		"removedUse(9, 0, (time.Duration)(most))",
		"removedUse(9, 0, (int)(most)) / len(list)",
		"s != other", "n < tuned",
	} {
		require.Contains(t, changed, want)
	}
	require.NoError(t, os.WriteFile(path, []byte(changed), 0o600))
	require.NoError(t, os.WriteFile("number.go", []byte("package p"+numberFile), 0o600))
	_, err = typesIn(".")
	require.NoError(t, err, changed)
}
