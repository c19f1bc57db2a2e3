// Command reconnect is a client that keeps in touch with its server: over outages, other
// networks, sleep, and restarts of the server. README.md says how it does that.
//
//	go run ./examples/reconnect serve
//	go run ./examples/reconnect talk localhost:4000
//
// Each line that is typed appears at the server, once and in order.
package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/arqnet/kcp"
)

// Phones may sleep for as long as the server keeps their sessions. The client wants to
// know sooner that a server is gone.
var (
	serverConfig = &kcp.Config{PeerTimeout: 10 * time.Minute}
	clientConfig = &kcp.Config{PeerTimeout: 15 * time.Second}
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdin, os.Stdout); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "reconnect:", err)
		os.Exit(1)
	}
}

// run is the program without its process.
func run(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	logger := log.New(out, "", log.Ltime)
	switch {
	case len(args) >= 1 && len(args) <= 2 && args[0] == "serve":
		l, err := kcp.Listen("udp", append(args, "localhost:4000")[1], serverConfig)
		if err != nil {
			return err
		}
		logger.Print("serving on ", l.Addr())
		return (&server{log: logger, inboxes: make(map[string]*inbox)}).run(ctx, l)
	case len(args) == 2 && args[0] == "talk":
		return talk(ctx, args[1], in, logger)
	}
	return errors.New("usage: reconnect serve [ADDRESS], or reconnect talk ADDRESS")
}

// talk sends the lines of its input, and waits until the server has them.
func talk(ctx context.Context, addr string, in io.Reader, logger *log.Logger) error {
	c := newClient(rand.Text(), func(ctx context.Context) (*kcp.Conn, error) {
		conn, err := (&kcp.Dialer{Config: clientConfig}).DialContext(ctx, "udp", addr) // looks the name up
		if err != nil {
			return nil, err
		}
		return conn.(*kcp.Conn), nil
	}, logger)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended, typed := make(chan error, 1), make(chan error, 1)
	go func() { ended <- c.link.run(ctx) }()
	go watchSleep(ctx, func() { c.link.wake(ctx) })
	go func() {
		lines := bufio.NewScanner(in)
		lines.Buffer(nil, 1<<15) // the server takes some more
		for lines.Scan() {
			c.send(lines.Text())
		}
		typed <- errors.Join(lines.Err(), c.flush(ctx))
	}()
	select {
	case err := <-ended:
		return err
	case err := <-typed:
		cancel()
		<-ended
		return err
	}
}

// watchSleep calls wake when the machine has slept, or the process was stopped: then more
// time has passed on the wall clock than between two ticks. On a phone do without it, as
// it wakes the device: the system has a callback.
func watchSleep(ctx context.Context, wake func()) {
	const every, late = 2 * time.Second, 5 * time.Second
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for last := time.Now().Round(0); ; { // Round drops the monotonic clock
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		now := time.Now().Round(0)
		if now.Sub(last) > every+late {
			wake()
		}
		last = now
	}
}
