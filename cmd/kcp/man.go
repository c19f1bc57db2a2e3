package main

import (
	"context"
	"fmt"
	"io"
	"strings"
)

// manOptions returns the command line of kcp man.
func manOptions() *optionSet {
	return &optionSet{
		synopsis: "kcp man",
		intro:    "Prints the manual page of kcp, in roff.",
		examples: `  kcp man | man -l -
  kcp man > /usr/local/share/man/man1/kcp.1`,
	}
}

// runMan is kcp man.
func runMan(_ context.Context, std streams, args []string) error {
	if _, err := manOptions().parse(std, args, 0); err != nil {
		return err
	}
	_, err := io.WriteString(std.out, manPage())
	return err
}

// roffEscaper keeps roff from giving characters a meaning, or another look.
var roffEscaper = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`)

// roff returns text for a roff document, of which each line is one of the document.
func roff(text string) string {
	lines := strings.Split(roffEscaper.Replace(text), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}

// manPage returns the manual page, in the macros of man(7).
func manPage() string {
	var b strings.Builder
	b.WriteString(`.TH KCP 1 "" "kcp" "User Commands"
.SH NAME
kcp \- move data over KCP, a reliable protocol on top of UDP
.SH SYNOPSIS
`)
	for i, c := range commands() {
		if i > 0 {
			b.WriteString(".br\n")
		}
		fmt.Fprintf(&b, "%s\n", roff(c.options().synopsis))
	}
	b.WriteString(".SH SUBCOMMANDS\n")
	for _, c := range commands() {
		o := c.options()
		fmt.Fprintf(&b, ".SS %s\n%s\n", roff("kcp "+c.name), manText(o.intro))
		for _, g := range o.groups {
			fmt.Fprintf(&b, ".PP\n%s:\n", roff(g.title))
			for _, f := range g.options {
				fmt.Fprintf(&b, ".TP\n%s\n%s\n", manHead(f), roff(f.help))
			}
		}
		if o.examples != "" {
			fmt.Fprintf(&b, ".PP\nExamples:\n.PP\n%s", manExamples(o.examples))
		}
	}
	fmt.Fprintf(&b, ".SH EXIT STATUS\n%s\n", roff(exitText))
	fmt.Fprintf(&b, ".SH ENVIRONMENT\n.TP\n.B %s\nthe key of \\fB\\-cipher\\fR, without \\fB\\-key\\fR and \\fB\\-key\\-file\\fR\n", keyVariable)
	b.WriteString(".SH SEE ALSO\n.BR nc (1),\n.BR ping (8)\n")
	return b.String()
}

// manHead returns the line of a flag and its argument.
func manHead(f option) string {
	head := `\fB` + roff("-"+f.name) + `\fR`
	if f.arg != "" {
		head += ` \fI` + roff(f.arg) + `\fR`
	}
	return head
}

// manText returns text whose paragraphs have an empty line between them.
func manText(text string) string { return strings.ReplaceAll(roff(text), "\n\n", "\n.PP\n") }

// manExamples returns lines as they are, except for their indent.
func manExamples(lines string) string {
	var b strings.Builder
	b.WriteString(".EX\n")
	for line := range strings.SplitSeq(lines, "\n") {
		fmt.Fprintf(&b, "%s\n", roff(strings.TrimPrefix(line, "  ")))
	}
	b.WriteString(".EE\n")
	return b.String()
}
