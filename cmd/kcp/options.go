package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// option is one flag. Without arg it is a switch: it may stand alone, which
// means true.
type option struct {
	name, arg string
	help      string // lines are broken by hand, for 54 columns
	set       func(value string) error
}

// optionGroup is a part of the usage text.
type optionGroup struct {
	title   string
	options []option
}

// optionSet is the command line of a subcommand.
type optionSet struct {
	synopsis string
	intro    string
	groups   []optionGroup
	examples string
}

// parse parses flags, which may stand before, after and between the other
// arguments, and returns the latter. There must be exactly positional of them.
// For -h it prints the usage text and returns flag.ErrHelp.
func (o *optionSet) parse(std streams, args []string, positional int) ([]string, error) {
	fs := flag.NewFlagSet(o.synopsis, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	for _, g := range o.groups {
		for _, opt := range g.options {
			if opt.arg == "" {
				fs.BoolFunc(opt.name, "", opt.set)
			} else {
				fs.Func(opt.name, "", opt.set)
			}
		}
	}
	var rest []string
	for {
		if err := fs.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				fmt.Fprint(std.out, o.usage())
				return nil, err
			}
			return nil, usageError{err}
		}
		if fs.NArg() == 0 {
			break
		}
		rest = append(rest, fs.Arg(0))
		args = fs.Args()[1:]
	}
	switch {
	case len(rest) > positional:
		return nil, usageErrorf("unexpected argument %q; the usage is: %s", rest[positional], o.synopsis)
	case len(rest) < positional:
		return nil, usageErrorf("an argument is missing; the usage is: %s", o.synopsis)
	}
	return rest, nil
}

// usage returns the usage text.
func (o *optionSet) usage() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage: %s\n\n%s\n", o.synopsis, o.intro)
	for _, g := range o.groups {
		fmt.Fprintf(&b, "\n%s:\n\n", g.title)
		for _, opt := range g.options {
			head := strings.TrimSpace("-" + opt.name + " " + opt.arg)
			help := strings.ReplaceAll(opt.help, "\n", "\n"+strings.Repeat(" ", 26))
			fmt.Fprintf(&b, "  %-22s  %s\n", head, help)
		}
	}
	if o.examples != "" {
		fmt.Fprintf(&b, "\nExamples:\n\n%s\n", o.examples)
	}
	return b.String()
}

// parsed returns a setter that stores the result of parse.
func parsed[T any](to *T, parse func(string) (T, error)) func(string) error {
	return func(s string) error {
		v, err := parse(s)
		if err == nil {
			*to = v
		}
		return err
	}
}

// toggle returns the setter of a switch.
func toggle(to *bool) func(string) error { return parsed(to, parseSwitch) }

// text returns the setter of a flag that is taken as it is, if it is not empty.
func text(to *string) func(string) error {
	return parsed(to, func(s string) (string, error) {
		if s == "" {
			return "", errors.New("must not be empty")
		}
		return s, nil
	})
}
