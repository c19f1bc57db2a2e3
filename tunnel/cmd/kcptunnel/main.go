// Command kcptunnel carries TCP connections and UDP packets over KCP with TLS 1.3,
// where paths lose packets.
//
//	kcptunnel server -auth users.json :4000
//	kcptunnel client -fingerprint SHA256:... -auth me:secret example.com:4000 \
//	        8080:intranet:80 R:2222:localhost:22 socks 5353:1.1.1.1:53/udp
//
// kcptunnel kcptun-server and kcptun-client speak with the program kcptun.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/arqnet/kcp/internal/version"
	"github.com/arqnet/kcp/tunnel"
	"github.com/urfave/cli/v3"
)

// Exit codes.
const (
	exitOK     = 0 // ended by a signal, or what stdio was connected with has ended
	exitFailed = 1
	exitUsage  = 2 // a mistake on the command line, or in a file that it names
	exitAway   = 3 // a client with -max-retries or stdio: the server turns it away, or is another one
)

func main() {
	ctx, end := context.WithCancelCause(context.Background())
	ends, ignore := signals(func(c chan<- os.Signal) { signal.Notify(c, os.Interrupt, syscall.SIGTERM) })
	go func() {
		s := <-ends
		ignore() // a second signal ends the process at once
		end(fmt.Errorf("signal %q", s))
	}()
	p := &program{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, notify: signalReload}
	os.Exit(p.run(ctx, os.Args))
}

// program is one run of the command.
type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	completing     bool // a shell asks what may come next
	args           []string
	// notify has signals sent to c that ask for files to be read again; nil: there are
	// none.
	notify func(c chan<- os.Signal)
}

// usageError is a mistake of the user's.
type usageError struct {
	command string
	err     error
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// run runs the command until it ends, or ctx is done, and returns the exit code.
func (p *program) run(ctx context.Context, args []string) int {
	p.args = args
	p.completing = args[len(args)-1] == "--generate-shell-completion"
	stderr := patient(p.stderr)
	p.stderr = stderr
	defer stderr.flush(flushTime)
	root := p.commands()
	err := root.Run(ctx, args)
	var usage *usageError
	var exit cli.ExitCoder
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		for _, one := range each(err) {
			fmt.Fprintf(p.stderr, "%s: %v\n", usage.command, one)
		}
		fmt.Fprintf(p.stderr, "Run '%s -h' for usage.\n", usage.command)
		return exitUsage
	case errors.As(err, &exit): // of the library: such as the help of what is not there
		fmt.Fprintf(p.stderr, "kcptunnel: %v\n", err)
		return exitUsage
	}
	fmt.Fprintf(p.stderr, "kcptunnel: %v\n", err)
	return exitCode(err)
}

// each returns the errors that are joined in err.
func each(err error) (all []error) {
	switch e := err.(type) {
	case *usageError:
		return each(e.err)
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			all = append(all, each(one)...)
		}
		return all
	}
	return []error{err}
}

// exitCode returns the exit code for what has failed.
func exitCode(err error) int {
	if tunnel.TurnedAway(err) {
		return exitAway
	}
	return exitFailed
}

// commands returns the command line.
func (p *program) commands() *cli.Command {
	root := &cli.Command{
		Name:  "kcptunnel",
		Usage: "carry TCP and UDP over bad paths",
		Description: "The exit code is 0 when a signal ended the program, 1 when something failed, 2 for a\n" +
			"mistake on the command line or in a file. A client goes on trying whatever the\n" +
			"server says. With -max-retries or stdio the code is 3 if the server turned it away,\n" +
			"or is not the one that it should be.",
		Version:               version.Line(),
		EnableShellCompletion: true,
		ConfigureShellCompletionCommand: func(c *cli.Command) {
			c.Hidden, c.Writer = false, p.stdout
			c.Usage = "print a script that completes commands and flags in bash, zsh, fish or pwsh"
		},
		HideHelpCommand: true,
		Suggest:         true,
		Commands: []*cli.Command{
			p.server(), p.client(), p.kcptunServer(), p.kcptunClient(), p.statusCommand(), p.hash(), p.fingerprint(), p.version(), p.man(),
		},
		Writer:         p.stdout,
		ErrWriter:      p.stderr,
		ExitErrHandler: func(context.Context, *cli.Command, error) {}, // run says it
		OnUsageError:   p.usage,
		Action: func(_ context.Context, c *cli.Command) error {
			if c.Args().Present() {
				return wrong(c, "unknown command %q: want %s", c.Args().First(), commandNames(c))
			}
			return wrong(c, "want a command: %s", commandNames(c))
		},
	}
	for _, c := range root.Commands {
		c.OnUsageError, c.HideHelpCommand, c.ShellComplete = p.usage, true, completeFlags
	}
	return root
}

// commandNames returns the names of the commands of c, for a sentence.
func commandNames(c *cli.Command) string {
	var names []string
	for _, one := range manCommands(c) {
		names = append(names, one.Name)
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// usage makes mistakes that the library has found usage errors, with the name of a
// flag in the form in which it is written.
func (p *program) usage(ctx context.Context, c *cli.Command, err error, _ bool) error {
	if p.completing { // the beginning of a flag is not a flag
		completeFlags(ctx, c)
		return nil
	}
	if name, ok := strings.CutPrefix(err.Error(), "flag provided but not defined: "); ok {
		err = fmt.Errorf("unknown flag %s", name)
		if near := suggestion(c, strings.Trim(name, "-")); near != "" {
			err = fmt.Errorf("%w; do you mean -%s?", err, near)
		}
	}
	return &usageError{c.FullName(), err}
}

// completeFlags prints the flags of a command, of which the shell takes those that
// begin as what is typed.
func completeFlags(_ context.Context, c *cli.Command) {
	for _, f := range c.Flags {
		if v, ok := f.(cli.VisibleFlag); !ok || !v.IsVisible() {
			continue
		}
		for _, name := range f.Names() {
			dashes := "--"
			if len(name) == 1 {
				dashes = "-"
			}
			fmt.Fprintln(c.Root().Writer, dashes+name)
		}
	}
}

// suggestion returns the flag that a name may be meant to be, or nothing.
func suggestion(c *cli.Command, name string) string {
	if len(name) < 2 {
		return ""
	}
	return strings.Trim(cli.SuggestFlag(c.Flags, name, true), "-")
}

// wrong returns a usage error.
func wrong(c *cli.Command, format string, args ...any) error {
	return &usageError{c.FullName(), fmt.Errorf(format, args...)}
}
