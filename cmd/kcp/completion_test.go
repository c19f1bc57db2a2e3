package main

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

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

// completed returns what bash offers for the last of words. Each call of compopt,
// which is for the completion at the prompt, is a word of its own.
func completed(t *testing.T, bash, script string, words ...string) []string {
	t.Helper()
	const test = `
compopt() { echo "compopt $*"; }
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_kcp
printf '%s\n' "${COMPREPLY[@]}"`
	cmd := exec.CommandContext(t.Context(), bash, append([]string{"-uc", script + test, "bash", "kcp"}, words...)...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

func TestBashCompletion(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash")
	}
	script := script(t, "bash")
	for words, want := range map[string]string{
		"d":                           "demo dial",
		"li":                          "listen",
		"x":                           "",
		"dial -wa":                    "-wait",
		"listen :9000 -tls-":          "-tls-cert -tls-key",
		"demo -loss 5% -fi":           "-file",
		"ping -cou":                   "-count",
		"relay -outage 1s+1s -outa":   "-outage",
		"version -":                   "-h",
		"completion f":                "fish",
		"help re":                     "relay",
		"dial -key-file x":            "compopt -o default",
		"dial --key-file x":           "compopt -o default",
		"demo -trace x":               "compopt -o dirnames",
		"trace x":                     "compopt -o default",
		"trace -":                     "compopt -o default", // stdin
		"trace -o":                    "-o",
		"dial -profile -w":            "", // its argument
		"dial -profile l":             "lowlatency",
		"demo --cc ":                  "bbr cubic reference none",
		"relay -profile l":            "", // it has other values
		"relay -profile s":            "satellite",
		"dial -cipher xc":             "xchacha20-poly1305",
		"dial -d -w":                  "-wait -write-buffer",
		"nonsense -w":                 "",
		"listen -allow-legacy -allow": "-allow-legacy",
	} {
		require.Equal(t, want, strings.Join(completed(t, bash, script, strings.Split(words, " ")...), " "), words)
	}
	require.Equal(t, commandNames(), completed(t, bash, script, ""))
}

// What fish and zsh offer for the last word.
var completions = map[string]string{
	"kcp dem":                     "demo",
	"kcp completion f":            "fish",
	"kcp dial -wa":                "-wait",
	"kcp demo -cc ":               "bbr cubic none reference",
	"kcp listen -nodelay t":       "turbo",
	"kcp dial -cipher xc":         "xchacha20-poly1305",
	"kcp dial -profile ":          "classic default lowlatency",
	"kcp relay -profile s":        "satellite",
	"kcp relay -shape p":          "pareto",
	"kcp relay -outage 1s+1s -di": "-direction",
}

func TestFishCompletion(t *testing.T) {
	fish, err := exec.LookPath("fish")
	if err != nil {
		t.Skip("there is no fish")
	}
	script := script(t, "fish")
	for line, want := range completions {
		out, err := exec.CommandContext(t.Context(), fish, "--no-config", "-c", script+"complete -C '"+line+"'").CombinedOutput()
		require.NoError(t, err, string(out))
		var got []string
		for line := range strings.Lines(string(out)) {
			word, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
			got = append(got, word)
		}
		slices.Sort(got)
		require.Equal(t, want, strings.Join(got, " "), line)
	}
}

// zshCompletes is run by zsh with the path of a script and lines. It types each line at
// another zsh, and prints what that offers, with a NUL behind it. That zsh echoes what is
// typed, so what is looked for stands there in two halves.
const zshCompletes = `
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z "autoload -Uz compinit; compinit -u -D; source $1"
zpty -w z 'compadd() {
	[[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]] && { builtin compadd "$@"; return }
	local -a words; builtin compadd -A words "$@"
	for w in $words; do print -r "of"fered:$w; done
	builtin compadd "$@"
}'
zpty -w z 'offer() { zle complete-word; print -r "the"end }; zle -N offer; bindkey "^I" offer; print -r "rea"dy'
zpty -r z out '*ready*'
for line in "${@[2,-1]}"; do
	zpty -w -n z $'\x15'"$line"$'\t'
	zpty -r z out '*theend*'
	print -rN -- "$out"
done
zpty -d z`

func TestZshCompletion(t *testing.T) {
	zsh, err := exec.LookPath("zsh")
	if err != nil {
		t.Skip("there is no zsh")
	}
	path := filepath.Join(t.TempDir(), "script")
	require.NoError(t, os.WriteFile(path, []byte(script(t, "zsh")), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	lines := slices.Sorted(maps.Keys(completions))
	out, err := exec.CommandContext(ctx, zsh, append([]string{"-fc", zshCompletes, "zsh", path}, lines...)...).CombinedOutput()
	require.NoError(t, err, string(out))
	parts := strings.Split(string(out), "\x00")
	require.Len(t, parts, len(lines)+1)
	for i, line := range lines {
		var got []string
		for _, offer := range regexp.MustCompile(`offered:(\S+)`).FindAllStringSubmatch(parts[i], -1) {
			got = append(got, offer[1])
		}
		slices.Sort(got)
		require.Equal(t, completions[line], strings.Join(slices.Compact(got), " "), "%s: %s", line, parts[i])
	}
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
