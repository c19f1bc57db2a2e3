// Command game is a small game server: 20 ticks a second. Positions of players are
// unreliable datagrams. The world is larger than a datagram: it goes to each player on
// a stream, and what is late of it is dropped. Chat is on a stream of its own, and
// leaves first. One loop over a kcp.Group serves all players, with all their streams.
//
//	go run ./examples/game serve
//	go run ./examples/game play -name ann
//	go run ./examples/game demo
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/arqnet/kcp"
)

const usage = `usage: game serve|play|demo [flags]

  serve   runs a server until it is interrupted
  play    joins a server, shows the field in the terminal, and reads lines from
          standard input: w, a, s and d steer, all others are chat
  demo    runs a server and some simulated players in this process

flags:
`

// settings are the command line.
type settings struct {
	addr     string
	name     string
	players  int
	duration time.Duration
}

// config is used by both ends: what is written to a stream is a message.
func config() *kcp.Config {
	c := kcp.LowLatency()
	c.MessageMode = true
	return &c
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "game:", err)
		os.Exit(1)
	}
}

// run is the program without its process.
func run(ctx context.Context, args []string, in io.Reader, out, messages io.Writer) error {
	var s settings
	flags := flag.NewFlagSet("game", flag.ContinueOnError)
	flags.SetOutput(messages)
	flags.Usage = func() {
		fmt.Fprint(messages, usage)
		flags.PrintDefaults()
	}
	flags.StringVar(&s.addr, "addr", "localhost:4000", "`address` to listen on, or to join, such as [::1]:4000 or :4000")
	flags.StringVar(&s.name, "name", "player", "`name` to play with")
	flags.IntVar(&s.players, "players", 8, "simulated players of demo")
	flags.DurationVar(&s.duration, "d", 3*time.Second, "duration of demo")
	if len(args) == 0 {
		flags.Usage()
		return errors.New("no command")
	}
	if err := flags.Parse(args[1:]); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	switch args[0] {
	case "serve":
		return serveUntilDone(ctx, s.addr, out)
	case "play":
		return play(ctx, s, in, out)
	case "demo":
		_, err := demo(ctx, s, out)
		return err
	}
	flags.Usage()
	return fmt.Errorf("unknown command %q", args[0])
}

// serveUntilDone runs a server until ctx is done.
func serveUntilDone(ctx context.Context, addr string, out io.Writer) error {
	l, err := kcp.Listen("udp", addr, config())
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "serving on", l.Addr())
	return newServer(out).run(ctx, l)
}
