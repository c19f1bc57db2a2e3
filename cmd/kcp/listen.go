package main

import (
	"context"
	"errors"
	"net"
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
them it looks as if nothing is read yet. Up to 128 wait; a further dial gets no
answer.

` + endingText,
		groups: []optionGroup{
			n.pipeGroup(option{"k", "", "keep listening: serve one session after another", toggle(keep)},
				n.settings.option(setting{"allow-legacy", "", "with a -cipher that authenticates, also accept peers\nsuch as kcp-go and kcptun; an attacker can then replay\nwhat it has recorded of their sessions",
					"", func(c *kcp.Config, value string) error {
						on, err := parseSwitch(value)
						if on {
							c.LegacyPeers = kcp.LegacyAllow
						}
						return err
					}})),
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
	n, keep := newNetcat(std, "listen"), false
	if err := n.parse(listenOptions(n, &keep), args); err != nil {
		return err
	}
	defer n.end()
	if err := n.tls.applyListen(n.cfg); err != nil {
		return err
	}
	if !strings.Contains(n.address, ":") {
		n.address = ":" + n.address
	}
	if err := n.resolve(); err != nil {
		return err
	}
	n.cfg.HandshakeFailed = func(remote net.Addr, err error) { n.warnf("session with %v: %v", remote, err) }
	l, err := kcp.Listen("udp", n.address, n.cfg)
	if err != nil {
		return err
	}
	n.debug.show(n.command, l.Endpoint())
	n.logf("listening on %v", l.Addr())
	if keep {
		defer l.Close()
		return n.serve(ctx, l)
	}
	conn, err := l.AcceptKCP(ctx)
	_ = l.Close() // the session goes on
	if ctx.Err() != nil && err != nil {
		return errInterrupted
	} else if err != nil {
		return err
	}
	return n.only(ctx, conn)
}

// serve accepts one session after another. It prints the error of a session
// that fails, and goes on; only an error of stdin or stdout ends it, or an
// interrupt, which is not an error between sessions.
func (n *netcat) serve(ctx context.Context, l *kcp.Listener) error {
	for {
		conn, err := l.AcceptKCP(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		if _, err = n.pipe(ctx, conn); err == nil {
			continue
		}
		var local *localError
		if errors.As(err, &local) || errors.Is(err, errInterrupted) {
			return err
		}
		n.warnf("session with %v: %v", conn.RemoteAddr(), err)
	}
}
