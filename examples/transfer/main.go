// Command transfer sends files to a server, and goes on where it was after an outage, or
// the end of either process.
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
// Anybody may send files. docs/recipes.md lets in clients with certificates alone.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/arqnet/kcp"
)

// config has the settings of both ends. A peer that is silent for so long is lost.
var config = &kcp.Config{PeerTimeout: 10 * time.Second, Limits: kcp.Limits{MaxSessions: 256}}

// request is what a client asks for, as JSON on a line. Equal ones are the same transfer.
// The server answers with the bytes that it has, a number of 8 bytes, big-endian. The
// client sends the rest of the file, and the server the SHA-256 of what is on its disk.
type request struct {
	Name string
	Size int64
	Sum  []byte // SHA-256
}

// maxRequest is the size of the longest request, in bytes.
const maxRequest = 1024

// Codes with which the server ends sessions (kcp.PeerCloseError.Code).
const (
	codeRefused   = iota + 1 // it is useless to ask again
	codeBusy                 // not now
	codeTakenOver            // another session continues this transfer
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "transfer:", err)
		os.Exit(1)
	}
}

// run is the program without its process.
func run(ctx context.Context, args []string, out io.Writer) error {
	usage := errors.New("usage: transfer serve [flags], or transfer put FILE ADDRESS; serve -h lists the flags")
	if len(args) == 0 {
		return usage
	}
	flags := flag.NewFlagSet("transfer "+args[0], flag.ContinueOnError)
	addr := flags.String("addr", "localhost:4000", "`address` to listen on")
	dir := flags.String("dir", ".", "`directory` for the files")
	most := flags.Int64("max-size", 16<<30, "largest file, in `bytes`")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	logger := log.New(out, "", log.Ltime)
	switch {
	case args[0] == "put" && flags.NArg() == 2:
		c := &client{log: logger, dial: func(ctx context.Context) (*kcp.Conn, error) {
			conn, err := (&kcp.Dialer{Config: config}).DialContext(ctx, "udp", flags.Arg(1)) // each time from a new socket
			if err != nil {
				return nil, err
			}
			return conn.(*kcp.Conn), nil
		}}
		return c.put(ctx, flags.Arg(0))
	case args[0] != "serve" || flags.NArg() != 0:
		return usage
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
	logger.Print("serving on ", l.Addr())
	return newServer(root, *most, logger).run(ctx, l)
}
