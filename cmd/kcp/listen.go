package main

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"

	"github.com/arqnet/kcp"
)

// listenOptions returns the command line of kcp listen.
func listenOptions(n *netcat, keep *bool) *optionSet {
	return &optionSet{
		synopsis: "kcp listen ADDR [flags]",
		intro: `Waits for a KCP session on the UDP address ADDR, such as :9000, and pipes it to
stdin and stdout. It accepts one session, refuses others, and ends with it.
With -k further sessions wait and are served in the order of their arrival. To
them it looks as if nothing is read yet; -v reports here that one is waiting. Up
to 129 wait; a further dial gets no answer.

` + endingText + upgradeText,
		groups: []optionGroup{
			n.pipeGroup(option{"k", "", "keep listening: serve one session after another", toggle(keep)},
				option{"allow-legacy", "", "with a -cipher that authenticates, also accept peers\nsuch as kcp-go and kcptun; an attacker can then replay\nwhat it has recorded of their sessions",
					edit(&n.settings, "allow-legacy", strconv.ParseBool, func(c *kcp.Config, v bool) {
						if c.LegacyPeers = kcp.LegacyDefault; v {
							c.LegacyPeers = kcp.LegacyAllow
						}
					})}),
			{"TLS", n.tls.listenOptions()},
			n.settings.group(),
		},
		examples: `  kcp listen :9000 > copy            receive a file
  kcp listen :9000 < file            send one
  kcp listen :9000 -k -d >> log      collect from one peer after another
  kcp listen :9000                   talk to the peer
  kcp listen :9000 -tls-cert cert.pem -tls-key key.pem`,
	}
}

// runListen is kcp listen.
func runListen(ctx context.Context, std streams, args []string) error {
	n := newNetcat(std, "listen")
	return n.lines.errors(n.runListen(ctx, args))
}

// runListen is the whole of kcp listen. Its errors are without the form of -json.
func (n *netcat) runListen(ctx context.Context, args []string) error {
	keep := false
	var err error
	if n.before, err = inherit(); err != nil {
		return err
	}
	if err := n.parse(listenOptions(n, &keep), args); err != nil {
		return err
	}
	defer func() { n.debug.close() }()
	defer n.settings.closeTraces(n.std, n.command)
	if err := n.tls.applyListen(n.cfg); err != nil {
		return err
	}
	if !strings.Contains(n.address, ":") {
		n.address = ":" + n.address
	}
	if _, err := n.resolve(); err != nil {
		return err
	}
	n.cfg.HandshakeFailed = func(remote net.Addr, err error) { n.warnf("session with %v: %v", remote, err) }
	l, err := n.listen(ctx)
	if err != nil {
		return err
	}
	n.debug.show(n.command, l.Endpoint())
	var u *upgrader
	if keep {
		u = n.upgradeOnHangup(ctx, l, args)
	}
	n.logf("listening on %v", l.Addr())
	if keep {
		return n.serve(ctx, l, u)
	}
	conn, err := l.AcceptKCP(ctx)
	_ = l.Close() // the session goes on
	if err != nil {
		return interrupted(ctx, err)
	}
	return n.only(ctx, conn)
}

// listen opens the socket, or takes it over.
func (n *netcat) listen(ctx context.Context) (*kcp.Listener, error) {
	if n.before == nil {
		return kcp.Listen("udp", n.address, n.cfg)
	}
	l, err := n.before.takeOver(ctx, n.cfg)
	if err != nil {
		return nil, err
	}
	if n.debug, err = n.settings.serveDebug(n.std, n.command); err != nil {
		n.warnf("cannot serve the live page: %v", err) // it is too late for an error
	}
	return l, nil
}

// serve accepts one session after another. It prints the error of a session
// that fails, and goes on; only an error of stdin or stdout ends it, or an
// interrupt, which is not an error between sessions. It returns nil after the last
// session if another process has taken over. u may be nil.
func (n *netcat) serve(ctx context.Context, l *kcp.Listener, u *upgrader) error {
	defer l.Close()
	accepting, stop := context.WithCancel(ctx)
	defer stop()
	accepted := n.acceptAhead(accepting, l)
	for {
		var next acceptance
		select {
		case next = <-accepted:
		case <-ctx.Done():
			return nil
		}
		conn, err := next.conn, next.err
		if err = interrupted(ctx, err); err == errInterrupted {
			return nil
		} else if err != nil && u.replaced() {
			return u.wait(ctx)
		} else if err != nil {
			return err
		}
		n.busy.Store(true)
		n.before.wait(ctx)
		_, err = n.pipe(ctx, conn)
		n.busy.Store(false)
		if err != nil {
			var local *localError
			if errors.As(err, &local) || errors.Is(err, errInterrupted) {
				return err
			}
			n.warnf("session with %v: %v", conn.RemoteAddr(), err)
		}
	}
}

// acceptance is a session, or the error that ends accepting them.
type acceptance struct {
	conn *kcp.Conn
	err  error
}

// acceptAhead accepts sessions one ahead of their use. So the user learns of one
// that has to wait for the end of another. The last acceptance is an error, unless
// ctx is done.
func (n *netcat) acceptAhead(ctx context.Context, l *kcp.Listener) <-chan acceptance {
	accepted := make(chan acceptance)
	go func() {
		for {
			conn, err := l.AcceptKCP(ctx)
			if err == nil && n.busy.Load() {
				n.logf("session with %v waits for the session before it to end", conn.RemoteAddr())
			}
			select {
			case accepted <- acceptance{conn, err}:
			case <-ctx.Done():
				if err == nil {
					_ = conn.Abort()
				}
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return accepted
}

// interrupted returns errInterrupted in place of the error of an Accept that
// ended because of ctx.
func interrupted(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && !errors.Is(err, net.ErrClosed) {
		return errInterrupted
	}
	return err
}
