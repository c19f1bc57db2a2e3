package main

import (
	"os"
	"os/exec"
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

// What reads manual pages finds nothing wrong with ours.
func TestManIsClean(t *testing.T) {
	page, ran := manPage(), false
	for _, lint := range [][]string{
		{"mandoc", "-T", "lint", "-W", "warning"},
		{"groff", "-man", "-ww", "-z", "-Kutf8"},
		{"man", "--warnings=w", "-l", "-Tutf8", "-"},
	} {
		path, err := exec.LookPath(lint[0])
		if err != nil {
			continue
		}
		cmd := exec.CommandContext(t.Context(), path, lint[1:]...)
		cmd.Env = append(os.Environ(), "LC_ALL=C") // a locale that is not there is none of its business
		cmd.Stdin = strings.NewReader(page)
		var stdout, stderr strings.Builder
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err = cmd.Run()
		if strings.Contains(stdout.String()+stderr.String(), "minimized") {
			continue // a system without manual pages has a man that says so
		}
		require.NoError(t, err, "%v: %s", lint, stderr.String())
		require.Empty(t, stderr.String(), lint)
		if lint[0] == "mandoc" {
			require.Empty(t, stdout.String())
		}
		ran = true
	}
	if !ran {
		t.Skip("there is no program that reads manual pages")
	}
}
