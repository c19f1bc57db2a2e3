// Command kcp moves data over KCP sessions: as a demonstration on one machine,
// or between two, in the manner of netcat.
//
//	kcp demo            moves 8 MB both ways at once through a bad network
//	kcp listen ADDR     accepts a session, and pipes it to stdin and stdout
//	kcp dial ADDR       the other end of that
//	kcp ping ADDR       measures the round trip to a listener
//	kcp relay -to ADDR  simulates a bad network between any two UDP programs
//	kcp trace FILE      makes a page of a trace of a session
//
// kcp SUBCOMMAND -h shows the flags.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/arqnet/kcp/internal/version"
)

// Exit codes.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitSignal      = 128 // and the number of the signal, as shells have it
	exitInterrupted = exitSignal + int(syscall.SIGINT)
)

func main() {
	// A write to a pipe that no process reads fails, instead of ending the process:
	// the peer of a session has to learn that it is over.
	signal.Ignore(brokenPipe)
	ctx, stop := notifyContext(os.Interrupt, syscall.SIGTERM, hangup)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// streams are the standard streams of a command.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// command is one subcommand.
type command struct {
	name, summary string
	run           func(ctx context.Context, std streams, args []string) error
}

func commands() []command {
	return []command{
		{"demo", "move a file both ways at once through a lossy network", runDemo},
		{"listen", "accept a session and pipe it to stdin and stdout", runListen},
		{"dial", "open a session and pipe it to stdin and stdout", runDial},
		{"ping", "measure the round trip to a listener", runPing},
		{"relay", "forward UDP packets through a simulated bad network", runRelay},
		{"trace", "make a page from the trace of a session", runTrace},
		{"version", "print the version", runVersion},
		{"help", "print this text, or the usage of a subcommand", runHelp},
	}
}

// usageError is a mistake on the command line.
type usageError struct{ error }

func usageErrorf(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

// run is the whole command; it returns the exit code. When ctx is done it ends
// cleanly.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	std := streams{stdin, stdout, &lockedWriter{w: stderr}}
	if len(args) == 0 {
		fmt.Fprint(std.err, mainUsage())
		return exitUsage
	}
	name, rest := args[0], args[1:]
	switch name {
	case "-h", "-help", "--help":
		name = "help"
	case "-version", "--version":
		name = "version"
	}
	for _, c := range commands() {
		if c.name == name {
			return report(ctx, std, name, c.run(ctx, std, rest))
		}
	}
	return report(ctx, std, "", usageErrorf("unknown subcommand %q", name))
}

// report prints err and returns the exit code for it. ctx is the command's.
func report(ctx context.Context, std streams, name string, err error) int {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	command, code, hint := strings.TrimSpace("kcp "+name), exitFailed, ""
	var usage usageError
	switch {
	case errors.As(err, &usage):
		code, hint = exitUsage, fmt.Sprintf("Run '%s -h' for usage.\n", command)
	case errors.Is(err, errInterrupted):
		code = interruptCode(ctx)
	}
	fmt.Fprintf(std.err, "%s: %v\n%s", command, err, hint)
	return code
}

func mainUsage() string {
	var b strings.Builder
	b.WriteString("kcp moves data over KCP, a reliable protocol on top of UDP.\n\nUsage:\n\n")
	for _, c := range commands() {
		fmt.Fprintf(&b, "  kcp %-10s %s\n", c.name, c.summary)
	}
	b.WriteString(`
Examples:

  kcp demo                            see it work, on this machine alone
  kcp demo -loss 20% -delay 100ms     on a worse network

  kcp listen :9000 > copy             receive a file, in one terminal
  kcp dial 127.0.0.1:9000 < file      send it, from another

  kcp relay -listen :4000 -to 127.0.0.1:9000 -loss 5% -delay 30ms

'kcp SUBCOMMAND -h' shows the flags of a subcommand.

The exit code is 0 on success, 1 when something failed, 2 for a mistake
on the command line, and 130 after an interrupt (Ctrl-C) in the middle: 128 and
the signal's number.
`)
	return b.String()
}

// runVersion prints the version of the build.
func runVersion(_ context.Context, std streams, args []string) error {
	o := &optionSet{synopsis: "kcp version", intro: "Prints the version of this command."}
	if _, err := o.parse(std, args, 0); err != nil {
		return err
	}
	_, err := fmt.Fprintln(std.out, "kcp "+version.Line())
	return err
}

// runHelp prints the usage of the whole command or of a subcommand.
func runHelp(ctx context.Context, std streams, args []string) error {
	if len(args) == 0 {
		_, err := io.WriteString(std.out, mainUsage())
		return err
	}
	if len(args) > 1 {
		return usageErrorf("unexpected argument %q; the usage is: %s", args[1], "kcp help [SUBCOMMAND]")
	}
	for _, c := range commands() {
		if c.name == args[0] && c.name != "help" {
			return c.run(ctx, std, []string{"-h"})
		}
	}
	if args[0] == "help" || strings.HasPrefix(args[0], "-") {
		return runHelp(ctx, std, nil)
	}
	return usageErrorf("unknown subcommand %q", args[0])
}

// lockedWriter lets several goroutines write to one stream.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
