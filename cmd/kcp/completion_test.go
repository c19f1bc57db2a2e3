package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// script returns a script of kcp completion.
func script(t *testing.T, shell string) string {
	t.Helper()
	got := runWith(t.Context(), nil, "completion", shell)
	require.Equal(t, exitOK, got.code, got.err)
	require.Empty(t, got.err)
	return got.out
}

// Each script has all subcommands with all their flags, and the values of those that
// have a list.
func TestCompletionHasEverything(t *testing.T) {
	for _, s := range shells() {
		sections := map[string]string{}
		text := script(t, s.name)
		for _, c := range commands() {
			sections[c.name] = section(t, s.name, text, c.name)
			require.Contains(t, text, c.name)
			for _, f := range c.options().all() {
				want := map[string]string{"bash": " -" + f.name, "zsh": "'*-" + f.name + "[", "fish": " -o " + f.name + " "}[s.name]
				require.Contains(t, sections[c.name], want, "%s: %s", s.name, c.name)
				if values := strings.Join(f.values(), " "); values != "" {
					values = map[string]string{
						"bash": "\t-" + f.name + ") COMPREPLY=($(compgen -W '" + values + "'", "zsh": "]:" + f.arg + ":(" + values + ")'",
						"fish": " -o " + f.name + " -xa '" + values + "'",
					}[s.name]
					require.Contains(t, sections[c.name], values, "%s: %s", s.name, c.name)
				}
			}
		}
		require.NotContains(t, sections["relay"], "write-buffer", s.name)
	}
}

// section returns the part of a script that is about a subcommand.
func section(t *testing.T, shell, text, name string) string {
	t.Helper()
	if shell == "fish" {
		var lines []string
		for line := range strings.Lines(text) {
			if strings.Contains(line, "= "+name+"' ") {
				lines = append(lines, line)
			}
		}
		return strings.Join(lines, "")
	}
	_, after, ok := strings.Cut(text, "\n\t"+name+")\n")
	require.True(t, ok, name)
	part, _, ok := strings.Cut(after, "\n\t\t;;\n")
	require.True(t, ok, name)
	return part
}

// The scripts that no test runs quote what has a meaning to their shells.
func TestCompletionQuotes(t *testing.T) {
	require.Contains(t, script(t, "zsh"), `'*-message[message mode\: writes do not share segments]'`)
	require.Contains(t, script(t, "zsh"), `'*-to[where to forward packets to]:HOST\:PORT: '`)
	require.Contains(t, script(t, "zsh"), `the name that the peer'\''s certificate must have`)
	require.Contains(t, script(t, "fish"), `the name that the peer\'s certificate must have'`)
	require.Contains(t, script(t, "fish"), " -o key-file -rF -d ")
	for _, line := range strings.Split(script(t, "fish"), "\n") {
		require.Zero(t, strings.Count(strings.ReplaceAll(line, `\'`, ""), "'")%2, line)
	}
}
