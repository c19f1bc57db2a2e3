package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The manual page has every subcommand, with all its flags.
func TestManHasEverything(t *testing.T) {
	got := runWith(t.Context(), nil, "man")
	require.Equal(t, exitOK, got.code, got.err)
	for _, c := range commands() {
		_, text, ok := strings.Cut(got.out, "\n.SS kcp "+c.name+"\n")
		require.True(t, ok, c.name)
		text = regexp.MustCompile(`(?m)^\.S[SH] `).Split(text, 2)[0]
		flags := c.options().all()
		require.Equal(t, len(flags), strings.Count(text, "\n.TP\n"), c.name)
		for _, f := range flags {
			head := `\fB\-` + strings.ReplaceAll(f.name, "-", `\-`) + `\fR`
			if f.arg != "" {
				head += ` \fI` + f.arg + `\fR`
			}
			require.Contains(t, text, "\n.TP\n"+head+"\n", c.name)
		}
	}
	for _, r := range got.out {
		require.Less(t, r, rune(0x80), "not ASCII: not every roff reads it")
	}
}

func TestRoff(t *testing.T) {
	require.Equal(t, `a\-b c\ed \(aqe\(aq`, roff(`a-b c\d 'e'`))
	require.Equal(t, "\\&.TP\nx.y\n\\&.z", roff(".TP\nx.y\n.z"))
	require.Equal(t, "one\ntwo\n.PP\nthree", manText("one\ntwo\n\nthree"))
	require.Equal(t, ".EX\na\n  b\n.EE\n", manExamples("  a\n    b"))
}
