// Command p2p is a pipe from one machine to another, directly, through NATs:
//
//	p2p serve                                    on a machine that both can reach
//	p2p send -server HOST:4000 <FILE             on one machine; it prints a code
//	p2p get -server HOST:4000 CODE >FILE         on the other
//
// README.md has the rest. It is a module of its own, so that the package does not depend on
// what icepath uses: ICE (pion/ice).
package main

import (
	"cmp"
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
       p2p send [flags]
       p2p get [flags] CODE

  serve  introduces those who have the same code to each other, until it is interrupted
  send   sends its input to the machine that gets the code that this prints
  get    prints what the machine sends that has printed the code

flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "p2p:", err)
		os.Exit(1)
	}
}

// settings are the command line.
type settings struct{ addr, server string }

// run is the program without its process.
func run(ctx context.Context, args []string, in io.Reader, out, messages io.Writer) error {
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
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	logger := log.New(messages, "", log.Ltime)
	switch {
	case command == "serve" && flags.NArg() == 0:
		return s.serve(ctx, logger)
	case command == "send" && flags.NArg() == 0:
		code := newCode()
		logger.Print("the code is ", code)
		return s.meet(ctx, roleSend, code, logger, func(conn *kcp.Conn) error { return send(conn, in) })
	case command == "get" && flags.NArg() == 1:
		return s.meet(ctx, roleGet, flags.Arg(0), logger, func(conn *kcp.Conn) error { return get(conn, out) })
	}
	flags.Usage()
	return errors.New("no such command")
}

func (s *settings) serve(ctx context.Context, logger *log.Logger) error {
	config, err := serverConfig()
	if err != nil {
		return err
	}
	l, err := kcp.Listen("udp", s.addr, config)
	if err != nil {
		return err
	}
	logger.Print("serving on ", l.Addr())
	return (&server{log: logger, waiting: make(map[string]*guest)}).run(ctx, l)
}

// meet uses a session with the end that has the same code.
func (s *settings) meet(ctx context.Context, role, code string, logger *log.Logger, use func(conn *kcp.Conn) error) error {
	server, err := net.ResolveUDPAddr("udp", s.server)
	if err != nil {
		return err
	}
	pc, err := net.ListenPacket("udp", s.addr)
	if err != nil {
		return err
	}
	defer pc.Close()
	n, err := newNode(pc, role, code, logger)
	if err != nil {
		return err
	}
	defer n.close()
	conn, err := n.meet(ctx, server)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Abort(0, "") })()
	return use(conn)
}

// send sends its input, and waits until the peer has it.
func send(conn *kcp.Conn, in io.Reader) error {
	defer conn.Abort(0, "") // after Close it does nothing
	if _, err := io.Copy(conn, in); err != nil {
		return err
	}
	if err := conn.CloseWrite(); err != nil {
		return err
	}
	if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
		return cmp.Or(err, errors.New("the peer does not speak this protocol"))
	}
	return conn.Close()
}

// get prints what the peer sends. The peer learns that this end has it.
func get(conn *kcp.Conn, out io.Writer) error {
	defer conn.Abort(0, "") // after Close it does nothing
	if _, err := io.Copy(out, conn); err != nil {
		return err
	}
	return conn.Close()
}
