// Command transfer sends files to a server, and goes on where it was after whatever
// may happen on the way: an outage, another network, the end of either process.
//
//	go run ./examples/transfer serve -dir /tmp/received
//	go run ./examples/transfer put FILE localhost:4000
//
// A transfer is known by the name, the size and the SHA-256 of the file, so a client
// that was killed needs no notes to continue: it says them again. The server tells it
// how much of the file is safe on its disk, and gets the rest. In the end the server
// reads the file back, and compares its SHA-256 with the client's.
//
// When a client comes back, the server may still take its old session for alive. So
// the later session takes over from the earlier one (see owners.take), which does not
// write any more once the later one knows how much there is.
//
// Without -cert anybody may send files, and read on the way what others send. With
// -cert and -ca at the server only clients with certificates may. What all of them
// store together is bounded by the disk alone.
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

const usage = `usage: transfer serve [flags]
       transfer put [flags] FILE ADDRESS

  serve  receives files into a directory until it is interrupted
  put    sends a file, and does not give up until the server has all of it

flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "transfer:", err)
		os.Exit(1)
	}
}

// run is the program without its process.
func run(ctx context.Context, args []string, out, messages io.Writer) error {
	command := ""
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	flags := flag.NewFlagSet("transfer "+command, flag.ContinueOnError)
	flags.SetOutput(messages)
	flags.Usage = func() {
		fmt.Fprint(messages, usage)
		flags.PrintDefaults()
	}
	var work func() error
	switch command {
	case "serve":
		work = serveCommand(ctx, flags, out)
	case "put":
		work = putCommand(ctx, flags, out, messages)
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

// serveCommand defines the flags of serve, and returns what it does.
func serveCommand(ctx context.Context, flags *flag.FlagSet, out io.Writer) func() error {
	limits := defaultLimits()
	var files tlsFiles
	addr := flags.String("addr", "localhost:4000", "`address` to listen on")
	dir := flags.String("dir", ".", "`directory` for the files")
	flags.Int64Var(&limits.size, "max-size", limits.size, "largest file, in `bytes`")
	flags.IntVar(&limits.transfers, "max-transfers", limits.transfers, "most transfers at a `time`")
	flags.StringVar(&files.cert, "cert", "", "accept only sessions with TLS 1.3, with this certificate (PEM `file`)")
	flags.StringVar(&files.key, "key", "", "its private key (PEM `file`)")
	flags.StringVar(&files.ca, "ca", "", "accept only clients with a certificate of these authorities (PEM `file`)")
	return func() error {
		config, err := files.serverConfig()
		if err != nil {
			return err
		}
		root, err := os.OpenRoot(*dir)
		if err != nil {
			return err
		}
		defer root.Close()
		l, err := kcp.Listen("udp", *addr, config)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, "serving on", l.Addr())
		return newServer(root, limits, log.New(out, "", log.Ltime)).run(ctx, l)
	}
}

// putCommand defines the flags of put, and returns what it does.
func putCommand(ctx context.Context, flags *flag.FlagSet, out, messages io.Writer) func() error {
	var files tlsFiles
	flags.BoolVar(&files.on, "tls", false, "use TLS 1.3, as a server with -cert wants")
	flags.StringVar(&files.ca, "ca", "", "use TLS, and trust these authorities (PEM `file`) in place of the system's")
	flags.StringVar(&files.cert, "cert", "", "use TLS, and show the server this certificate (PEM `file`)")
	flags.StringVar(&files.key, "key", "", "its private key (PEM `file`)")
	return func() error {
		if flags.NArg() != 2 {
			flags.Usage()
			return errors.New("put needs a file and an address")
		}
		path, addr := flags.Arg(0), flags.Arg(1)
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return err
		}
		config, err := files.clientConfig()
		if err != nil {
			return err
		}
		// Each attempt has a socket of its own: the address of the last one may be gone.
		dial := func(ctx context.Context) (*kcp.Conn, error) { return kcp.DialContext(ctx, "udp", addr, config) }
		c := &client{dial: dial, log: log.New(out, "", log.Ltime), bar: newProgress(messages)}
		return c.put(ctx, path)
	}
}
