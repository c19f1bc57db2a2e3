package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/arqnet/kcp"
)

const (
	// retryAfter is the pause before dialling again after a refusal.
	retryAfter = 200 * time.Millisecond
	// defaultAnswer is the time-out of an answer without -wait.
	defaultAnswer = 10 * time.Second
)

// dialOptions returns the command line of kcp dial.
func dialOptions(n *netcat) *optionSet {
	return &optionSet{
		synopsis: "kcp dial ADDR [flags]",
		intro: `Opens a KCP session with the UDP address ADDR, such as 192.0.2.1:9000, and
pipes it to stdin and stdout.

` + endingText,
		groups: []optionGroup{
			n.pipeGroup(n.waitOption()),
			{"TLS", n.tls.dialOptions()},
			n.settings.group(),
		},
		examples: `  kcp dial 192.0.2.1:9000 < file             send a file
  kcp dial 192.0.2.1:9000 > copy             receive one
  echo status | kcp dial 192.0.2.1:9000      ask, and print the answer
  kcp dial 192.0.2.1:9000 -wait 1m           wait for the peer, then talk to it
  kcp dial example.com:9000 -tls             check the peer's certificate`,
	}
}

// runDial is kcp dial.
func runDial(ctx context.Context, std streams, args []string) error {
	n := newNetcat(std, "dial")
	if err := n.parse(dialOptions(n), args); err != nil {
		return err
	}
	defer n.end()
	conn, err := n.open(ctx)
	if err != nil {
		return err
	}
	return n.only(ctx, conn)
}

// open opens the session that the command line asks for.
func (n *netcat) open(ctx context.Context) (*kcp.Conn, error) {
	if err := n.tls.applyDial(n.cfg); err != nil {
		return nil, err
	}
	if err := n.resolve(); err != nil {
		return nil, err
	}
	conn, err := n.dial(ctx)
	if ctx.Err() != nil {
		if err == nil {
			_ = conn.Abort(0, "")
		}
		return nil, errInterrupted
	}
	return conn, err
}

// waitOption returns the flag -wait.
func (n *netcat) waitOption() option {
	return option{"wait", "DURATION", "keep trying this long if the peer refuses or does not\nanswer, so that either end may start first; -1: no\nlimit; default: fail when refused, or after 10s",
		parsed(&n.wait, parseWait)}
}

// dial opens the session. If the peer refuses it tries again, for as long as -wait says.
func (n *netcat) dial(ctx context.Context) (*kcp.Conn, error) {
	limit := cmp.Or(n.wait, defaultAnswer)
	if n.wait < 0 {
		limit = forEver
	}
	cfg := *n.cfg
	cfg.DialTimeout = limit
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	d := kcp.Dialer{Config: &cfg}
	for refused := false; ; {
		conn, err := d.DialContext(ctx, "udp", n.address)
		switch {
		case err == nil:
			return conn.(*kcp.Conn), nil
		case errors.Is(err, kcp.ErrTLSRequired):
			return nil, fmt.Errorf("%s wants TLS (-tls)", n.address)
		case errors.Is(err, kcp.ErrRefused) && n.wait == 0:
			return nil, fmt.Errorf("no listener at %s, or it refuses further sessions; -wait DURATION keeps trying", n.address)
		case errors.Is(err, kcp.ErrRefused):
		case refused && (ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded)): // package net may see it first
			return nil, fmt.Errorf("no listener at %s for %v (-wait), or it refuses further sessions", n.address, n.wait)
		case errors.Is(err, context.DeadlineExceeded): // a peer drops what its cipher does not open
			return nil, fmt.Errorf("no answer from %s in %v (-wait), or it has another -cipher or -key", n.address, limit)
		default:
			return nil, err
		}
		if !refused {
			refused = true
			n.logf("no listener at %s, or it refuses further sessions; retrying", n.address)
		}
		select {
		case <-time.After(retryAfter):
		case <-ctx.Done():
		}
	}
}

// parseWait parses a time to wait. It may not be 0, which means that the flag
// is absent.
func parseWait(s string) (time.Duration, error) {
	d, err := parsePatience(s)
	switch {
	case err != nil:
		return 0, err
	case d == 0:
		return 0, errors.New("must not be 0")
	case d > 0 && d < time.Millisecond: // Config.DialTimeout must not be
		return 0, errors.New("must be at least 1ms")
	}
	return d, nil
}
