// Command game is a small game server: 20 ticks a second. Positions of players are
// unreliable datagrams. The world is larger than a datagram: it goes to each player on
// a stream, and what is late of it is dropped. Chat is on a stream of its own, and
// leaves first. One loop over a kcp.Group serves all players, with all their streams.
//
//	go run ./examples/game serve
//	go run ./examples/game play -name ann
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/arqnet/kcp"
)

// config is used by both ends: what is written to a stream is a message.
func config() *kcp.Config {
	c := kcp.LowLatency()
	c.MessageMode = true
	return &c
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdin, os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "game:", err)
		os.Exit(1)
	}
}

// run is the program without its process.
func run(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	flags := flag.NewFlagSet("game", flag.ContinueOnError)
	addr := flags.String("addr", "localhost:4000", "`address` to listen on, or to join")
	name := flags.String("name", "player", "`name` to play with, of 20 bytes at most")
	if len(args) == 0 || args[0] != "serve" && args[0] != "play" {
		return errors.New("usage: game serve|play [flags]; serve -h lists the flags")
	}
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if args[0] == "play" {
		conn, err := (&kcp.Dialer{Config: config()}).DialContext(ctx, "udp", *addr)
		if err != nil {
			return err
		}
		return play(ctx, conn.(*kcp.Conn), *name, in, out)
	}
	l, err := kcp.Listen("udp", *addr, config())
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "serving on", l.Addr())
	return newServer(out).run(ctx, l)
}
