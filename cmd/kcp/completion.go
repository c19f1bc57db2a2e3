package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
)

// shell makes the script of kcp completion for a shell.
type shell struct {
	name   string
	script func() string
}

func shells() []shell {
	return []shell{{"bash", bashScript}, {"zsh", zshScript}, {"fish", fishScript}}
}

// completionOptions returns the command line of kcp completion.
func completionOptions() *optionSet {
	o := &optionSet{
		synopsis: "kcp completion SHELL",
		intro: `Prints a script with which the shell completes the subcommands and flags of
kcp. SHELL is bash, zsh or fish.`,
		examples: `  source <(kcp completion bash)              in ~/.bashrc
  source <(kcp completion zsh)               in ~/.zshrc, after compinit
  kcp completion fish | source               in ~/.config/fish/config.fish`,
	}
	for _, s := range shells() {
		o.words = append(o.words, s.name)
	}
	return o
}

// runCompletion is kcp completion.
func runCompletion(_ context.Context, std streams, args []string) error {
	rest, err := completionOptions().parse(std, args, 1)
	if err != nil {
		return err
	}
	for _, s := range shells() {
		if s.name == rest[0] {
			_, err := io.WriteString(std.out, s.script())
			return err
		}
	}
	return usageErrorf("unknown shell %q: want bash, zsh or fish", rest[0])
}

// all returns the flags of all groups.
func (o *optionSet) all() (all []option) {
	for _, g := range o.groups {
		all = append(all, g.options...)
	}
	return all
}

// takesFile reports whether the argument is the name of a file.
func (o *optionSet) takesFile() bool { return strings.Contains(o.synopsis, " FILE") }

// brief returns the help of a flag in one line, up to the first semicolon.
func (o option) brief() string {
	text, _, _ := strings.Cut(strings.ReplaceAll(o.help, "\n", " "), ";")
	return text
}

// escaped returns s with a backslash in front of each of the special characters.
func escaped(s, special string) string {
	var b strings.Builder
	for _, r := range s {
		if strings.ContainsRune(special, r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// quoted returns s as a word of a shell, in which quote stands for a quote.
func quoted(s, quote string) string { return "'" + strings.ReplaceAll(s, "'", quote) + "'" }

// The quote inside of a quoted word, in the shells.
const (
	shQuote   = `'\''`
	fishQuote = `\'`
)

// flagNames returns the flags of o with an argument that is one of args, or with any
// argument if there are no args, for a pattern of case.
func flagNames(o *optionSet, args ...string) string {
	var names []string
	for _, f := range o.all() {
		if f.arg != "" && (len(args) == 0 || slices.Contains(args, f.arg)) {
			names = append(names, "-"+f.name)
		}
	}
	return strings.Join(names, "|")
}

// bashScript returns the script for bash, of version 4 or later.
func bashScript() string {
	var b strings.Builder
	b.WriteString(`# Completion of kcp for bash.
_kcp() {
	local cur=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=-h
	before=${before/#--/-}
	COMPREPLY=()
	if ((COMP_CWORD == 1)); then
`)
	fmt.Fprintf(&b, "\t\tCOMPREPLY=($(compgen -W '%s' -- \"$cur\"))\n\t\treturn\n\tfi\n", strings.Join(commandNames(), " "))
	b.WriteString("\tcase ${COMP_WORDS[1]} in\n")
	for _, c := range commands() {
		o := c.options()
		fmt.Fprintf(&b, "\t%s)\n\t\tcase $before in\n", c.name)
		for _, f := range o.all() {
			if values := f.values(); values != nil {
				fmt.Fprintf(&b, "\t\t-%s) COMPREPLY=($(compgen -W '%s' -- \"$cur\")); return ;;\n", f.name, strings.Join(values, " "))
			}
		}
		for _, kind := range []struct{ names, reply string }{
			{flagNames(o, "PATH"), "compopt -o default 2>/dev/null; return"},
			{flagNames(o, "DIR"), "compopt -o dirnames 2>/dev/null; return"},
			{flagNames(o), "return"},
		} {
			if kind.names != "" {
				fmt.Fprintf(&b, "\t\t%s) %s ;;\n", kind.names, kind.reply)
			}
		}
		b.WriteString("\t\tesac\n")
		words := append([]string{"-h"}, o.words...)
		for _, f := range o.all() {
			words = append(words, "-"+f.name)
		}
		fmt.Fprintf(&b, "\t\twords='%s'\n", strings.Join(words, " "))
		if o.takesFile() {
			b.WriteString("\t\t[[ $cur == -?* ]] || { compopt -o default 2>/dev/null; return; }\n")
		}
		b.WriteString("\t\t;;\n")
	}
	b.WriteString("\tesac\n\tCOMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\ncomplete -F _kcp kcp\n")
	return b.String()
}

// zshScript returns the script for zsh.
func zshScript() string {
	var b strings.Builder
	b.WriteString("#compdef kcp\n_kcp() {\n\tlocal -a subcommands\n\tsubcommands=(\n")
	for _, c := range commands() {
		fmt.Fprintf(&b, "\t\t%s\n", quoted(c.name+":"+c.summary, shQuote))
	}
	b.WriteString("\t)\n\tif (( CURRENT == 2 )); then\n\t\t_describe subcommand subcommands\n\t\treturn\n\tfi\n")
	b.WriteString("\tshift words\n\t(( CURRENT-- ))\n\tcase $words[1] in\n")
	for _, c := range commands() {
		o := c.options()
		fmt.Fprintf(&b, "\t%s)\n\t\t_arguments", c.name)
		for _, f := range append([]option{helpOption}, o.all()...) {
			// A star: it may stand more than once.
			text := "*-" + f.name + "[" + escaped(f.brief(), `[]:\`) + "]" + f.zshArgument()
			fmt.Fprintf(&b, " \\\n\t\t\t%s", quoted(text, shQuote))
		}
		switch {
		case o.takesFile():
			b.WriteString(" \\\n\t\t\t'1:file:_files'")
		case len(o.words) > 0:
			fmt.Fprintf(&b, " \\\n\t\t\t'1:argument:(%s)'", strings.Join(o.words, " "))
		}
		b.WriteString("\n\t\t;;\n")
	}
	b.WriteString("\tesac\n}\n# It is sourced, or loaded by compinit from a file named _kcp.\n" +
		"if [[ $funcstack[1] == _kcp ]]; then\n\t_kcp \"$@\"\nelse\n\tcompdef _kcp kcp\nfi\n")
	return b.String()
}

// helpOption is the flag that all subcommands have.
var helpOption = option{name: "h", help: "print the usage"}

// zshArgument describes the argument of a flag to _arguments of zsh.
func (o option) zshArgument() string {
	if o.arg == "" {
		return ""
	}
	does := " "
	switch values := o.values(); {
	case values != nil:
		does = "(" + strings.Join(values, " ") + ")"
	case o.arg == "PATH":
		does = "_files"
	case o.arg == "DIR":
		does = "_files -/"
	}
	return ":" + strings.ReplaceAll(o.arg, ":", `\:`) + ":" + does
}

// fishScript returns the script for fish.
func fishScript() string {
	var b strings.Builder
	b.WriteString("# Completion of kcp for fish.\ncomplete -c kcp -f\n")
	for _, c := range commands() {
		fmt.Fprintf(&b, "complete -c kcp -n __fish_use_subcommand -a %s -d %s\n", c.name, quoted(escaped(c.summary, `\`), fishQuote))
	}
	for _, c := range commands() {
		o := c.options()
		// Not __fish_seen_subcommand_from: an argument may be a name, too.
		when := fmt.Sprintf("complete -c kcp -n 'set -l words (commandline -opc); test \"$words[2]\" = %s'", c.name)
		for _, f := range append([]option{helpOption}, o.all()...) {
			kind := " -x"
			switch values := f.values(); {
			case f.arg == "":
				kind = ""
			case values != nil:
				kind = " -xa '" + strings.Join(values, " ") + "'"
			case f.arg == "PATH":
				kind = " -rF"
			case f.arg == "DIR":
				kind = " -xa '(__fish_complete_directories)'"
			}
			fmt.Fprintf(&b, "%s -o %s%s -d %s\n", when, f.name, kind, quoted(escaped(f.brief(), `\`), fishQuote))
		}
		switch {
		case o.takesFile():
			fmt.Fprintf(&b, "%s -F\n", when)
		case len(o.words) > 0:
			fmt.Fprintf(&b, "%s -a '%s'\n", when, strings.Join(o.words, " "))
		}
	}
	return b.String()
}
