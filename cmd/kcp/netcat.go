package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/arqnet/kcp"
)

// netcat holds what listen and dial have in common.
type netcat struct {
	std     streams
	command string
	address string

	settings settings
	cfg      *kcp.Config
	quiet    time.Duration
	receive  bool // only receive
	verbose  bool
	in       *input
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

// pipeGroup returns the flags of both. more stand before them.
func (n *netcat) pipeGroup(more ...option) optionGroup {
	return optionGroup{"Flags", append(more,
		option{"q", "DURATION", "quiet time: end so long after stdin has ended and the\nlast packet came from the peer; 0: as soon as stdin is\ndelivered; -1: never; default 3s",
			parsed(&n.quiet, parsePatience)},
		option{"d", "", "only receive: do not read stdin; the default where\nstdin is a terminal and stdout is not", toggle(&n.receive)},
		option{"v", "", "say on stderr what happens", toggle(&n.verbose)},
	)}
}

// The end of a session, as told by the usage texts of both.
const endingText = `KCP cannot tell the peer that a side is done. So each side ends by itself,
when its stdin has ended, all of that was acknowledged, all that came is on
stdout, and then nothing more comes for the time of -q. Set -q longer than the
longest pause in what the other side sends. An interrupt (Ctrl-C) ends at once;
what was sent until then is still delivered.`

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
	n.cfg.Logger = n.logger()
	if !n.receive {
		n.in = newInput(n.std.in)
	}
	return nil
}

// resolve returns the UDP address of the argument.
func (n *netcat) resolve() (*net.UDPAddr, error) {
	host, port, err := net.SplitHostPort(n.address)
	if err != nil {
		return nil, usageErrorf("%q is not an address: want HOST:PORT, such as 127.0.0.1:9000", n.address)
	}
	if p, err := strconv.Atoi(port); err == nil && (p < 0 || p > 65535) {
		return nil, usageErrorf("%q is not an address: there is no port %d", n.address, p)
	}
	return net.ResolveUDPAddr("udp", net.JoinHostPort(host, port))
}

// pipe moves data through a session until it ends.
func (n *netcat) pipe(ctx context.Context, conn *kcp.Conn, needFirst bool) error {
	patience := n.cfg.PeerTimeout
	if patience == 0 {
		patience = defaultPatience
	}
	n.logf("session with %v", conn.RemoteAddr())
	start := time.Now()
	p := pipe{conn: conn, in: n.in, out: n.std.out, quiet: n.quiet, patience: patience, needFirst: needFirst}
	err := p.run(ctx)
	s := conn.Stats()
	n.logf("session with %v ended after %s: sent %s, received %s, resent %s",
		conn.RemoteAddr(), formatTime(time.Since(start)), formatBytes(float64(s.BytesSent)),
		formatBytes(float64(p.written.Load())), resentShare(&s))
	return err
}

// logf tells who asked for it what happens.
func (n *netcat) logf(format string, args ...any) {
	if n.verbose {
		n.warnf(format, args...)
	}
}

// warnf tells everybody.
func (n *netcat) warnf(format string, args ...any) {
	fmt.Fprintf(n.std.err, n.command+": "+format+"\n", args...)
}

// logger returns the logger for the sessions, which shows warnings.
func (n *netcat) logger() *slog.Logger {
	text := slog.NewTextHandler(n.std.err, &slog.HandlerOptions{
		Level: slog.LevelWarn,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
				return slog.Attr{}
			}
			return a
		},
	})
	return slog.New(&refusals{Handler: text, refused: n.refused})
}

// refused tells that the system of the peer has said that nobody listens. It
// is no failure yet: who starts both ends at once need not care which is first.
func (n *netcat) refused() {
	limit := "until it does"
	if timeout := n.cfg.PeerTimeout; timeout >= 0 {
		if timeout == 0 {
			timeout = defaultPatience
		}
		limit = "for " + timeout.String()
	}
	n.warnf("nobody listens at %s (connection refused); trying on %s", n.address, limit)
}

// refusals is a slog.Handler that puts the first refused connection into words
// and drops further ones.
type refusals struct {
	slog.Handler
	refused func()
	told    atomic.Bool
}

// Handle is that of slog.Handler.
func (h *refusals) Handle(ctx context.Context, r slog.Record) error {
	refused := false
	r.Attrs(func(a slog.Attr) bool {
		err, ok := a.Value.Any().(error)
		refused = ok && errors.Is(err, syscall.ECONNREFUSED)
		return !refused
	})
	if !refused {
		return h.Handler.Handle(ctx, r)
	}
	if h.told.CompareAndSwap(false, true) {
		h.refused()
	}
	return nil
}

// resentShare returns the share of transmissions that were not the first.
func resentShare(s *kcp.ConnStats) string {
	again := float64(s.Retransmits())
	return formatShare(again, float64(s.SegmentsSent)+again)
}
