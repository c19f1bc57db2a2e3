package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"
)

// man returns the command man.
func (p *program) man() *cli.Command {
	return &cli.Command{
		Name: "man", Usage: "print the manual page", Description: "For man(1), in roff: kcptunnel man | man -l -",
		Action: func(_ context.Context, c *cli.Command) error {
			if c.Args().Present() {
				return wrong(c, "want no arguments, not %q", c.Args().First())
			}
			_, err := io.WriteString(p.stdout, manPage(c.Root()))
			return err
		},
	}
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
func manPage(root *cli.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH KCPTUNNEL 1 \"\" \"kcptunnel\" \"User Commands\"\n.SH NAME\nkcptunnel \\- %s\n.SH SYNOPSIS\n", roff(root.Usage))
	commands := manCommands(root)
	for i, c := range commands {
		if i > 0 {
			b.WriteString(".br\n")
		}
		fmt.Fprintf(&b, "%s\n", roff(synopsis(c)))
	}
	b.WriteString(".SH COMMANDS\n")
	for _, c := range commands {
		usage := strings.ToUpper(c.Usage[:1]) + c.Usage[1:] + "."
		fmt.Fprintf(&b, ".SS kcptunnel %s\n%s\n", roff(c.Name), roff(usage))
		if c.Description != "" {
			fmt.Fprintf(&b, ".PP\n%s", manText(c.Description))
		}
		for _, f := range c.Flags {
			fmt.Fprint(&b, manFlag(f))
		}
	}
	fmt.Fprintf(&b, ".SH EXIT STATUS\n%s\n", roff(root.Description))
	b.WriteString(".SH ENVIRONMENT\n.TP\n.B KCPTUNNEL_AUTH\n\\fB\\-auth\\fR of the client\n.TP\n.B KCPTUN_KEY\n\\fB\\-key\\fR of kcptun\\-server and kcptun\\-client\n")
	b.WriteString(".SH SEE ALSO\n.BR kcp (1),\n.BR ssh (1),\n.BR systemd.service (5)\n")
	return b.String()
}

// manCommands returns the commands that are shown.
func manCommands(root *cli.Command) (all []*cli.Command) {
	for _, c := range root.Commands {
		if !c.Hidden && c.Name != "completion" && c.Name != "help" {
			all = append(all, c)
		}
	}
	return all
}

// synopsis returns how a command is called.
func synopsis(c *cli.Command) string {
	text := "kcptunnel " + c.Name
	if slices.ContainsFunc(c.Flags, func(f cli.Flag) bool { return manFlag(f) != "" }) {
		text += " [flags]"
	}
	if c.ArgsUsage != "" {
		text += " " + c.ArgsUsage
	}
	return text
}

// manText returns paragraphs, and lines that begin with spaces as they are.
func manText(text string) string {
	var b strings.Builder
	asIs := false
	for line := range strings.SplitSeq(text, "\n") {
		switch indented := strings.HasPrefix(line, "  "); {
		case indented && !asIs:
			b.WriteString(".EX\n")
			asIs = true
		case !indented && asIs:
			b.WriteString(".EE\n")
			asIs = false
		}
		if line == "" {
			line = ".PP"
		} else {
			line = roff(line)
		}
		b.WriteString(line + "\n")
	}
	if asIs {
		b.WriteString(".EE\n")
	}
	return strings.ReplaceAll(b.String(), ".PP\n.EX", ".EX")
}

// manFlag returns the entry of a flag, or nothing if it is not shown.
func manFlag(f cli.Flag) string {
	shown, ok := f.(cli.VisibleFlag)
	doc, documented := f.(cli.DocGenerationFlag)
	if !ok || !documented || !shown.IsVisible() || f.Names()[0] == "help" {
		return ""
	}
	usage, arg := doc.GetUsage(), ""
	if before, rest, ok := strings.Cut(usage, "`"); ok {
		if name, after, ok := strings.Cut(rest, "`"); ok {
			arg, usage = name, before+name+after
		}
	}
	if arg == "" && doc.TakesValue() {
		arg = strings.ToUpper(doc.TypeName())
	}
	head := ""
	for i, name := range f.Names() {
		if i > 0 {
			head += ", "
		}
		head += `\fB` + roff("-"+name) + `\fR`
	}
	if arg != "" {
		head += ` \fI` + roff(arg) + `\fR`
	}
	if value := doc.GetValue(); doc.IsDefaultVisible() && doc.TakesValue() && value != "" && value != "[]" {
		usage = strings.TrimSpace(usage + " (default: " + value + ")")
	}
	if usage == "" {
		usage = "a number of kcptun"
	}
	return fmt.Sprintf(".TP\n%s\n%s\n", head, roff(usage))
}
