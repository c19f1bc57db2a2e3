package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/arqnet/kcp"
)

// netcat holds what listen and dial have in common.
type netcat struct {
	std     streams
	command string
	address string

	settings settings
	tls      tlsFlags
	cfg      *kcp.Config
	quiet    time.Duration
	wait     time.Duration // for how long dial retries; 0: flag not given, negative: forever
	receive  bool          // do not read stdin
	verbose  bool
	json     bool
	in       *input       // nil with receive
	debug    *debugServer // nil without -debug
}

func newNetcat(std streams, command string) *netcat {
	return &netcat{
		std:      std,
		command:  "kcp " + command,
		settings: settings{profile: defaultProfile},
		quiet:    defaultQuiet,
		receive:  isTerminal(std.in) && !isTerminal(std.out),
	}
}

// pipeGroup returns the flags of both subcommands, after more.
func (n *netcat) pipeGroup(more ...option) optionGroup {
	return optionGroup{"Flags", append(more,
		option{"q", "DURATION", "for peers that cannot signal their end, such as\nkcp-go: end this long after the end of stdin and the\nlast packet; 0: as soon as stdin is delivered;\n-1: never; default 3s",
			parsed(&n.quiet, parsePatience)},
		option{"d", "", "only receive: do not read stdin; the default if stdin\nis a terminal and stdout is not", toggle(&n.receive)},
		n.verboseOption(),
		jsonOption(&n.json, "stderr"),
	)}
}

// verboseOption returns the flag -v.
func (n *netcat) verboseOption() option {
	return option{"v", "", "report events on stderr", toggle(&n.verbose)}
}

// endingText describes the end of a session in the usage texts of both.
const endingText = `At the end of stdin the peer reads end of file, and can go on sending. The
command ends when the peer has acknowledged all data and has ended its side too.
An interrupt (Ctrl-C) delivers what was read from stdin so far, and then closes
the session. The other side is told and fails, so that it does not mistake a
part for the whole.`

// parse reads the command line.
func (n *netcat) parse(options *optionSet, args []string) error {
	rest, err := options.parse(n.std, args, 1)
	if err != nil {
		return err
	}
	n.address = rest[0]
	if n.cfg, err = n.settings.config(); err != nil {
		return err
	}
	if n.verbose {
		n.cfg.Logger = slog.New(slog.NewTextHandler(n.std.err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	if !n.receive {
		n.in = newInput(n.std.in)
	}
	n.debug, err = n.settings.serveDebug(n.std, n.command)
	return err
}

// end ends what parse has begun.
func (n *netcat) end() {
	n.debug.close()
	n.settings.closeTraces(n.std, n.command)
}

// resolve returns why the argument is not a UDP address, or nil.
func (n *netcat) resolve() error {
	if err := checkAddress(n.address); err != nil {
		return err
	}
	_, err := net.ResolveUDPAddr("udp", n.address)
	return err
}

// checkAddress returns a usageError unless address has the form of one.
func checkAddress(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return usageErrorf("%q is not an address: want HOST:PORT, such as 127.0.0.1:9000", address)
	}
	if _, err := net.LookupPort("udp", port); err != nil {
		return usageErrorf("%q is not an address: unknown port %s", address, port)
	}
	return nil
}

// pipe moves data through a session until it ends.
func (n *netcat) pipe(ctx context.Context, conn *kcp.Conn) (*pipe, error) {
	p := &pipe{
		conn: conn, in: n.in, out: n.std.out, quiet: n.quiet,
		patience: cmp.Or(n.cfg.PeerTimeout, defaultPatience),
		linger:   max(cmp.Or(n.cfg.Linger, defaultLinger), 0),
	}
	n.logf("session with %v", conn.RemoteAddr())
	n.debug.show(n.command, conn.Endpoint())
	start, meter := time.Now(), n.meter(p)
	err := p.run(ctx)
	meter.stop()
	s := conn.Stats()
	if n.json {
		o := jsonPipe{
			Type: "result", Remote: conn.RemoteAddr().String(), Seconds: time.Since(start).Seconds(),
			Sent: p.delivered(), Received: int64(p.written.Load()), jsonSegments: segmentsOf(&s), Complete: err == nil,
		}
		if err != nil {
			o.Error = err.Error()
		}
		_ = printJSON(n.std.err, o) // the session is over
	}
	n.logf("session with %v ended after %s: sent %s, received %s, resent %s",
		conn.RemoteAddr(), formatTime(time.Since(start)), formatBytes(float64(s.BytesSent)),
		formatBytes(float64(p.written.Load())), resentShare(&s))
	return p, err
}

// only is pipe for the single session of a process.
func (n *netcat) only(ctx context.Context, conn *kcp.Conn) error {
	p, err := n.pipe(ctx, conn)
	if err == nil {
		p.hold(ctx)
	}
	return err
}

// logf prints an event with -v.
func (n *netcat) logf(format string, args ...any) {
	if n.verbose {
		n.warnf(format, args...)
	}
}

// warnf prints a message.
func (n *netcat) warnf(format string, args ...any) {
	fmt.Fprintf(n.std.err, n.command+": "+format+"\n", args...)
}
