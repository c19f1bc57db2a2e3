package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
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
	lines    jsonLines
	cfg      *kcp.Config
	quiet    time.Duration
	wait     time.Duration // for how long dial retries; 0: flag not given, negative: forever

	portPatience time.Duration // how long dial uses one port
	receive      bool          // do not read stdin
	verbose      bool
	in           *input       // nil with receive
	busy         atomic.Bool  // listen -k serves a session
	debug        *debugServer // nil without -debug
	before       *predecessor // the process to take over from; nil: none
}

func newNetcat(std streams, command string) *netcat {
	return &netcat{
		std:      std,
		command:  "kcp " + command,
		lines:    jsonLines{out: std.err},
		settings: settings{profile: defaultProfile},
		quiet:    defaultQuiet,
		receive:  isTerminal(std.in) && !isTerminal(std.out),

		portPatience: portPatience,
	}
}

// pipeGroup returns the flags of both subcommands, after more.
func (n *netcat) pipeGroup(more ...option) optionGroup {
	return optionGroup{"Flags", append(more,
		option{"q", "DURATION", "for peers that cannot signal their end, such as\nkcp-go: end this long after the end of stdin and the\nlast packet; 0: as soon as stdin is delivered;\n-1: never; default 3s",
			parsed(&n.quiet, parsePatience)},
		option{"d", "", "only receive: do not read stdin; the default if stdin\nis a terminal and stdout is not", toggle(&n.receive)},
		n.verboseOption(),
		n.lines.option("stderr"),
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
	n.std.err = n.lines.messages(n.std.err, n.command)
	n.address = rest[0]
	if n.cfg, err = n.settings.config(); err != nil {
		return err
	}
	if n.verbose {
		n.cfg.Logger = n.logger()
	}
	if !n.receive {
		n.in = newInput(n.std.in)
	}
	if n.before == nil { // which still serves its page
		n.debug, err = n.settings.serveDebug(n.std, n.command)
	}
	return err
}

// resolve returns the UDP address of the argument.
func (n *netcat) resolve() (*net.UDPAddr, error) {
	if err := checkAddress(n.address); err != nil {
		return nil, err
	}
	return net.ResolveUDPAddr("udp", n.address)
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
	orDefault := func(d, standard time.Duration) time.Duration {
		if d == 0 {
			return standard
		}
		return d
	}
	p := &pipe{
		conn: conn, in: n.in, out: n.std.out, quiet: n.quiet,
		patience: orDefault(n.cfg.PeerTimeout, defaultPatience),
		linger:   max(orDefault(n.cfg.Linger, defaultLinger), 0),
	}
	n.logf("session with %v", conn.RemoteAddr())
	n.debug.show(n.command, conn.Endpoint())
	start := time.Now()
	progress := n.newProgress(p)
	progress.run()
	err := p.run(ctx)
	progress.stop(err)
	if n.lines.on {
		progress.printResult(err)
		return p, err
	}
	s := conn.Stats()
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

// logger returns the logger of the sessions, which prints warnings as warnf does.
func (n *netcat) logger() *slog.Logger { return slog.New(&logHandler{n: n}) }

// logHandler prints records as messages of the command.
type logHandler struct {
	n     *netcat
	attrs []slog.Attr
}

func (h *logHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn
}

func (h *logHandler) Handle(_ context.Context, r slog.Record) error {
	text := strings.TrimPrefix(r.Message, "kcp: ")
	add := func(a slog.Attr) bool { text += ", " + a.String(); return true }
	for _, a := range h.attrs {
		add(a)
	}
	r.Attrs(add)
	h.n.warnf("%s", text)
	return nil
}

func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &logHandler{h.n, append(slices.Clone(h.attrs), attrs...)}
}

// WithGroup returns h: package kcp has no groups.
func (h *logHandler) WithGroup(string) slog.Handler { return h }

// resentShare returns the share of retransmissions in all transmissions.
func resentShare(s *kcp.ConnStats) string {
	again := float64(s.Retransmits())
	return formatShare(again, float64(s.SegmentsSent)+again)
}
