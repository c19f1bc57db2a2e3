// Command p2p sends a file from one machine to another, directly, through NATs:
//
//	p2p serve                                    on a machine that both can reach
//	p2p send -server HOST:4000 FILE              on one machine; it prints a code
//	p2p get -server HOST:4000 CODE               on the other
//
// On one LAN no server is needed: p2p send -lan FILE, and p2p get -lan CODE. README.md
// has the rest.
//
// It is a module of its own, so that the package does not depend on what it uses: STUN
// (pion/stun), DNS-SD (hashicorp/mdns) and, in icepath, ICE (pion/ice).
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
	"strings"
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
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "p2p:", err)
		os.Exit(1)
	}
}

// run is the program without its process.
func run(ctx context.Context, args []string, out, messages io.Writer) error {
	command := ""
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	flags := flag.NewFlagSet("p2p "+command, flag.ContinueOnError)
	flags.SetOutput(messages)
	flags.Usage = func() {
		fmt.Fprint(messages, usage)
		flags.PrintDefaults()
	}
	var work func() error
	switch command {
	case "serve":
		work = serveCommand(ctx, flags, out, messages)
	case "send":
		work = sendCommand(ctx, flags, out, messages)
	case "get":
		work = getCommand(ctx, flags, out, messages)
	default:
		flags.Usage()
		return fmt.Errorf("unknown command %q", command)
	}
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	return work()
}

// listen opens a UDP socket, whose buffers KCP would enlarge if it had it alone.
func listen(addr string) (net.PacketConn, error) {
	pc, err := net.ListenPacket("udp", addr)
	if err != nil {
		return nil, err
	}
	u := pc.(*net.UDPConn)
	_, _ = u.SetReadBuffer(socketBuffer), u.SetWriteBuffer(socketBuffer) // less is slower
	return pc, nil
}

const socketBuffer = 4 << 20

// serveCommand defines the flags of serve, and returns what it does.
func serveCommand(ctx context.Context, flags *flag.FlagSet, out, messages io.Writer) func() error {
	l := defaultLimits()
	addr := flags.String("addr", ":4000", "`address` to listen on")
	second := flags.String("stun", ":4001", "`address` of a second STUN server, by which clients learn the kind of their NAT")
	key := flags.String("key", "", "`file` with the server's key, made if there is none, so that its fingerprint stays (default: a new key)")
	flags.DurationVar(&l.wait, "wait", l.wait, "how long a client waits for its peer at most")
	return func() error {
		cert, err := keyFile(*key)
		if err != nil {
			return err
		}
		first, err := listen(*addr)
		if err != nil {
			return err
		}
		defer first.Close()
		other, err := listen(*second)
		if err != nil {
			return err
		}
		defer other.Close()
		go serveSTUN(other)
		config := l.config()
		config.TLS = serverTLS(cert)
		ep, err := kcp.NewEndpoint(newSTUNConn(first, true), config)
		if err != nil {
			return err
		}
		defer ep.Close()
		listener, err := ep.Listen()
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "serving on %s, STUN there and on %s, -server-key %s\n",
			first.LocalAddr(), other.LocalAddr(), fingerprint(cert.Leaf))
		ports := []uint16{addrPort(other.LocalAddr()).Port()}
		return newServer(l, ports, log.New(messages, "", log.Ltime)).run(ctx, listener)
	}
}

// meeting are the flags of both ends.
type meeting struct {
	server, serverKey, stun, addr string
	lan                           bool
}

func (m *meeting) flags(flags *flag.FlagSet) {
	flags.StringVar(&m.server, "server", "", "rendezvous server, as `host:port`")
	flags.StringVar(&m.serverKey, "server-key", "", "its `fingerprint`, as serve prints it (default: any)")
	flags.StringVar(&m.stun, "stun", "", "further STUN `servers`, as host:port,host:port")
	flags.StringVar(&m.addr, "addr", ":0", "`address` of the socket")
	flags.BoolVar(&m.lan, "lan", false, "find the peer on the LAN, without a server")
}

// node makes the end of a role, and returns how it meets its peer.
func (m *meeting) node(role, code string, messages io.Writer) (n *node, meet func(context.Context) (*kcp.Conn, error), err error) {
	if m.lan == (m.server != "") {
		return nil, nil, errors.New("give -server, or -lan")
	}
	pc, err := listen(m.addr)
	if err != nil {
		return nil, nil, err
	}
	n, err = newNode(pc, role, code, log.New(messages, "", log.Ltime))
	if err != nil {
		_ = pc.Close()
		return nil, nil, err
	}
	n.server, n.pins.server = m.server, m.serverKey
	if m.stun != "" {
		n.stun = strings.Split(m.stun, ",")
	}
	if m.lan {
		return n, n.meetOnLAN, nil
	}
	return n, n.meet, nil
}

// sendCommand defines the flags of send, and returns what it does.
func sendCommand(ctx context.Context, flags *flag.FlagSet, out, messages io.Writer) func() error {
	var m meeting
	m.flags(flags)
	code := flags.String("code", "", "`code` to use in place of a random one, such as the code of an interrupted transfer")
	return func() error {
		if flags.NArg() != 1 {
			flags.Usage()
			return errors.New("send takes one file")
		}
		f, err := os.Open(flags.Arg(0))
		if err != nil {
			return err
		}
		defer f.Close()
		if *code == "" {
			*code = newCode()
		}
		n, meet, err := m.node(roleSend, *code, messages)
		if err != nil {
			return err
		}
		defer n.close()
		o, err := describeFile(f)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s: %d bytes; the code is %s\n", o.Name, o.Size, *code)
		bar := newProgress(messages)
		err = n.exchange(ctx, meet, func(ctx context.Context, conn *kcp.Conn) error {
			return sendFile(ctx, conn, f, o, bar)
		})
		if err == nil {
			fmt.Fprintf(out, "%s: sent, and compared by SHA-256 %x\n", o.Name, o.Sum)
		}
		return err
	}
}

// getCommand defines the flags of get, and returns what it does.
func getCommand(ctx context.Context, flags *flag.FlagSet, out, messages io.Writer) func() error {
	var m meeting
	m.flags(flags)
	dir := flags.String("dir", ".", "`directory` for the file")
	most := flags.Int64("max-size", 64<<30, "largest file, in `bytes`")
	return func() error {
		if flags.NArg() != 1 {
			flags.Usage()
			return errors.New("get takes one code")
		}
		root, err := os.OpenRoot(*dir)
		if err != nil {
			return err
		}
		defer root.Close()
		n, meet, err := m.node(roleGet, flags.Arg(0), messages)
		if err != nil {
			return err
		}
		defer n.close()
		s, bar := &store{root, *most}, newProgress(messages)
		return n.exchange(ctx, meet, func(ctx context.Context, conn *kcp.Conn) error {
			o, err := s.receive(ctx, conn, bar)
			if err == nil {
				fmt.Fprintf(out, "%s: %d bytes received, SHA-256 %x\n", o.Name, o.Size, o.Sum)
			}
			return err
		})
	}
}
