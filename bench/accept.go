package main

import (
	"errors"
	"fmt"
	"time"
)

// The accept suite has one client open a connection from a new socket, send a
// byte, wait for the answer of one byte, and close, again and again. The
// listening end closes its end of each too. It counts connections a second. In
// the cases named tls each has a handshake, with an ECDSA certificate for P-256.

const metricRate = "rate"

func init() {
	register(&suite{
		name:    "accept",
		about:   "connections opened and closed, a byte each way, one after the other",
		cases:   []string{"1", overTLS, tickets},
		impls:   []string{ours, kcpGo, kernelTCP},
		metrics: []metric{{metricRate, "per second"}},
		charts:  []chart{{name: "rate", title: "Connections opened and closed", metric: metricRate}},
		lacks:   func(c, impl string) bool { return c != "1" && impl == kcpGo },
		measure: measureAccept,
	})
}

// measureAccept opens connections for d.
func measureAccept(c, impl string, d time.Duration) (f figures, err error) {
	s := settings{mode: c, window: idleWindow}
	switch c {
	case "1":
		s.mode = plain
	case overTLS, tickets:
	default:
		return nil, fmt.Errorf("no case %q", c)
	}
	p, err := newPeer(impl, s)
	if err != nil {
		return nil, err
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		acceptAll(p)
	}()
	defer func() {
		err = errors.Join(err, p.Close())
		<-served
	}()
	n := 0
	start := time.Now()
	for n == 0 || time.Since(start) < d {
		if err := visit(p); err != nil {
			return nil, err
		}
		n++
	}
	return figures{metricRate: float64(n) / time.Since(start).Seconds()}, nil
}

// acceptAll serves connections until the listening end is closed.
func acceptAll(p peer) {
	for {
		c, err := p.Accept()
		if err != nil {
			return
		}
		go func() {
			if wantGreeting(c) == nil {
				_, _ = c.Write([]byte{greeting}) // the client misses it
			}
			_ = c.Close() // the client may be gone
		}()
	}
}

// visit opens a connection, has one byte answered, and closes it.
func visit(p peer) (err error) {
	c, err := p.Dial()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if _, err := c.Write([]byte{greeting}); err != nil {
		return err
	}
	return wantGreeting(c)
}
