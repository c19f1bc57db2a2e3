// Command p2p sends a file from one machine to another, directly, through NATs:
//
//	p2p serve                                    on a machine that both can reach
//	p2p send -server HOST:4000 FILE              on one machine; it prints a code
//	p2p get -server HOST:4000 CODE               on the other
//
// README.md has the rest. It is a module of its own, so that the package does not depend on
// what icepath uses: ICE (pion/ice).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/arqnet/kcp"
)

const usage = `usage: p2p serve [flags]
       p2p send [flags] FILE
       p2p get [flags] CODE

  serve  introduces those who have the same code to each other, until it is interrupted
  send   sends a file to the machine that gets the code that this prints
  get    gets a file from the machine that has printed the code

flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "p2p:", err)
		os.Exit(1)
	}
}

// settings are the command line.
type settings struct {
	addr, server, dir string
	most              int64
	arg               string // FILE or CODE
}

// run is the program without its process.
func run(ctx context.Context, args []string, out, messages io.Writer) error {
	var s settings
	flags := flag.NewFlagSet("p2p", flag.ContinueOnError)
	flags.SetOutput(messages)
	flags.Usage = func() {
		fmt.Fprint(messages, usage)
		flags.PrintDefaults()
	}
	if len(args) == 0 {
		flags.Usage()
		return errors.New("no command")
	}
	command, local := args[0], ":0"
	if command == "serve" {
		local = ":4000"
	}
	flags.StringVar(&s.addr, "addr", local, "`address` of the socket")
	flags.StringVar(&s.server, "server", "", "rendezvous server of send and get, as `host:port`")
	flags.StringVar(&s.dir, "dir", ".", "`directory` for the file that get gets")
	flags.Int64Var(&s.most, "max-size", 64<<30, "the largest that get gets, in `bytes`")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	s.arg = flags.Arg(0)
	logger := log.New(messages, "", log.Ltime)
	switch {
	case command == "serve" && flags.NArg() == 0:
		return s.serve(ctx, out, logger)
	case command != "send" && command != "get" || flags.NArg() != 1:
		flags.Usage()
		return errors.New("one command, and one FILE or CODE")
	case command == "send":
		return s.send(ctx, out, logger)
	}
	return s.get(ctx, out, logger)
}

func (s *settings) serve(ctx context.Context, out io.Writer, logger *log.Logger) error {
	config, err := serverConfig()
	if err != nil {
		return err
	}
	l, err := kcp.Listen("udp", s.addr, config)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "serving on %s\n", l.Addr())
	return (&server{log: logger, waiting: make(map[string]*guest)}).run(ctx, l)
}

// connect opens a session with the end that has the same code.
func (s *settings) connect(ctx context.Context, role, code string, logger *log.Logger) (n *node, conn *kcp.Conn, err error) {
	server, err := net.ResolveUDPAddr("udp", s.server)
	if err != nil {
		return nil, nil, err
	}
	pc, err := net.ListenPacket("udp", s.addr)
	if err != nil {
		return nil, nil, err
	}
	if n, err = newNode(pc, role, code, logger); err != nil {
		_ = pc.Close()
		return nil, nil, err
	}
	if conn, err = n.meet(ctx, server); err != nil {
		n.close()
	}
	return n, conn, err
}

func (s *settings) send(ctx context.Context, out io.Writer, logger *log.Logger) error {
	f, err := os.Open(s.arg)
	if err != nil {
		return err
	}
	defer f.Close()
	code := newCode()
	fmt.Fprintf(out, "the code is %s\n", code)
	n, conn, err := s.connect(ctx, roleSend, code, logger)
	if err != nil {
		return err
	}
	defer n.close()
	o, err := send(ctx, conn, f)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: %d bytes sent\n", o.Name, o.Size)
	return nil
}

func (s *settings) get(ctx context.Context, out io.Writer, logger *log.Logger) error {
	dir, err := os.OpenRoot(s.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	n, conn, err := s.connect(ctx, roleGet, s.arg, logger)
	if err != nil {
		return err
	}
	defer n.close()
	o, err := receive(ctx, conn, dir, s.most)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: %d bytes received\n", o.Name, o.Size)
	return nil
}
