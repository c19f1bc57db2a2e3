package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/pages"
	"github.com/arqnet/kcp/qlog"
)

// traceOptions returns the command line of kcp trace.
func traceOptions(out *string) *optionSet {
	return &optionSet{
		synopsis: "kcp trace FILE [flags]",
		intro: `Makes a page from a trace that -trace of demo, listen or dial, or package qlog,
has written: when which segment was sent, lost and acknowledged, round-trip
times, windows and rates. The page is one HTML file that needs nothing else.
FILE is - for stdin.`,
		groups: []optionGroup{{"Flags", []option{
			{"o", "PATH", "the page; -: stdout; default: FILE with .html at its\nend", text(out)},
		}}},
		examples: `  kcp demo -loss 20% -trace .
  kcp trace 20260102T150405.000Z-0badcafe-client.sqlog
  kcp trace - < client.sqlog -o page.html`,
	}
}

// runTrace is kcp trace.
func runTrace(_ context.Context, std streams, args []string) error {
	var out string
	rest, err := traceOptions(&out).parse(std, args, 1)
	if err != nil {
		return err
	}
	name, in := rest[0], std.in
	switch {
	case name == "-" && out == "":
		out = "-"
	case out == "":
		out = strings.TrimSuffix(name, filepath.Ext(name)) + ".html"
		if out == name {
			return usageErrorf("%s is the page's own name; -o PATH gives another", name)
		}
	}
	if name == "-" {
		name = "stdin"
	} else {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	var page bytes.Buffer
	if err := pages.WriteTrace(&page, in, filepath.Base(name)); err != nil {
		if errors.Is(err, qlog.ErrFormat) {
			return fmt.Errorf("%s: %w", name, err)
		}
		return err
	}
	if out == "-" {
		_, err = io.Copy(std.out, &page)
		return err
	}
	if err := os.WriteFile(out, page.Bytes(), 0o644); err != nil {
		return err
	}
	fmt.Fprintf(std.err, "kcp trace: wrote %s\n", out)
	return nil
}

// traceOption returns the flag -trace, which writes traces of all sessions.
func (s *settings) traceOption() option {
	return option{"trace", "DIR", "write a trace of each session into this folder, for\n'kcp trace'; at most 1000 of them, of 64 MiB", func(dir string) error {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return errors.New("want a folder that exists")
		}
		s.traces = qlog.NewDir(dir, nil)
		s.edits = append(s.edits, func(c *kcp.Config) error {
			c.Tracer = s.traces.Trace
			return nil
		})
		return nil
	}}
}

// closeTraces completes the traces of -trace, and prints what went wrong with
// them.
func (s *settings) closeTraces(std streams, command string) {
	if s.traces == nil {
		return
	}
	if err := s.traces.Close(); err != nil {
		fmt.Fprintf(std.err, "%s: -trace: %v\n", command, err)
	}
}
