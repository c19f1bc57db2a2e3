// Command reconnect is a client that keeps in touch with its server: over outages, other
// networks, sleep, and restarts of the server. README.md says how it does that.
//
//	go run ./examples/reconnect serve -dir /tmp/reconnect
//	go run ./examples/reconnect talk localhost:4000
//
// Each line that is typed is stored at the server, once and in order. "/get NAME" fetches
// a file from the folder "files" of the server's directory.
package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/arqnet/kcp"
)

const (
	// alpn is the protocol of both ends in TLS.
	alpn = "kcp-reconnect"
	// Phones may sleep for as long as the server keeps their sessions. The client wants
	// to know sooner that a server is gone.
	serverPatience = 10 * time.Minute
	clientPatience = 15 * time.Second
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
	command := ""
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	flags := flag.NewFlagSet("reconnect "+command, flag.ContinueOnError)
	flags.SetOutput(out)
	var work func() error
	switch command {
	case "serve":
		work = serve(ctx, flags, out)
	case "talk":
		work = talk(ctx, flags, in, out)
	default:
		return errors.New("usage: reconnect serve [flags], or reconnect talk [flags] ADDRESS; -h lists the flags")
	}
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	return work()
}

// serve defines the flags of serve, and returns what it does.
func serve(ctx context.Context, flags *flag.FlagSet, out io.Writer) func() error {
	addr := flags.String("addr", "localhost:4000", "`address` to listen on")
	dir := flags.String("dir", ".", "`directory` for messages, and with the folder files")
	cert := flags.String("cert", "", "use TLS 1.3, with this certificate (PEM `file`)")
	key := flags.String("key", "", "its private key (PEM `file`)")
	return func() error {
		config := &kcp.Config{PeerTimeout: serverPatience}
		if *cert != "" {
			pair, err := tls.LoadX509KeyPair(*cert, *key)
			if err != nil {
				return err
			}
			config.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{alpn}}
			if config.StatelessResetKey, err = resetKey(*key); err != nil {
				return err
			}
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
		logger := log.New(out, "", log.Ltime)
		logger.Printf("serving on %v", l.Addr())
		return newServer(root, logger).run(ctx, l)
	}
}

// resetKey returns the key beside the file of the certificate's key, which it makes the
// first time: it has to be the same after a restart.
func resetKey(beside string) ([]byte, error) {
	path := beside + ".reset"
	key, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		key = make([]byte, 32)
		_, _ = rand.Read(key) // never fails
		err = os.WriteFile(path, key, 0o600)
	}
	return key, err
}

// talk defines the flags of talk, and returns what it does.
func talk(ctx context.Context, flags *flag.FlagSet, in io.Reader, out io.Writer) func() error {
	ca := flags.String("ca", "", "use TLS, and trust these authorities (PEM `file`)")
	name := flags.String("id", "", "who the client is, 32 hexadecimal `digits`; give the digits of an earlier run to go on with it")
	return func() error {
		host, port, err := net.SplitHostPort(flags.Arg(0))
		if err != nil {
			return err
		}
		id, err := clientID(*name)
		if err != nil {
			return err
		}
		config, err := clientConfig(host, *ca)
		if err != nil {
			return err
		}
		logger := log.New(out, "", log.Ltime)
		c := newClient(id, config, openSocket, resolver(host, port), logger)
		logger.Printf("id %x", id)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- c.run(ctx) }()
		go watchSleep(ctx, func() { c.link.wake(ctx) })
		typed := make(chan error, 1)
		go func() { typed <- c.take(ctx, in, logger) }()
		select {
		case err := <-ended:
			return err
		case err := <-typed:
			cancel()
			<-ended
			return err
		}
	}
}

// take sends what is typed, and waits until the server has it.
func (c *client) take(ctx context.Context, in io.Reader, logger *log.Logger) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		name, fetches := strings.CutPrefix(lines.Text(), "/get ")
		if !fetches {
			c.send([]byte(lines.Text()))
			continue
		}
		f, err := os.Create(filepath.Base(name))
		if err != nil {
			return err
		}
		if err := errors.Join(c.fetch(ctx, name, f, 0), f.Close()); err != nil {
			logger.Printf("%s: %v", f.Name(), err)
		} else {
			logger.Printf("%s: complete", f.Name())
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return c.flush(ctx)
}

// clientID returns the id that is given, or one at random.
func clientID(name string) (id [idSize]byte, err error) {
	if name == "" {
		_, _ = rand.Read(id[:]) // never fails
		return id, nil
	}
	b, err := hex.DecodeString(name)
	if err == nil && len(b) != idSize {
		err = fmt.Errorf("an id of %d bytes, not %d", len(b), idSize)
	}
	if err != nil {
		return id, err
	}
	return [idSize]byte(b), nil
}

// clientConfig returns the client's settings. With tickets later handshakes need no
// certificates (session resumption, RFC 8446 §2.2). There is no 0-RTT.
func clientConfig(host, ca string) (*kcp.Config, error) {
	config := &kcp.Config{PeerTimeout: clientPatience}
	if ca == "" {
		return config, nil
	}
	text, err := os.ReadFile(ca)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate", ca)
	}
	config.TLS = &tls.Config{
		RootCAs: roots, ServerName: host, NextProtos: []string{alpn}, ClientSessionCache: tls.NewLRUClientSessionCache(1),
	}
	return config, nil
}

// openSocket opens a socket that is bound to no address, nor connected. So the system
// chooses the source of each packet, also when the device has another address.
func openSocket() (net.PacketConn, error) { return net.ListenUDP("udp", nil) }

// resolver returns a function that looks the server up.
func resolver(host, port string) func(ctx context.Context) ([]net.Addr, error) {
	return func(ctx context.Context) (addrs []net.Addr, err error) {
		number, err := net.DefaultResolver.LookupPort(ctx, "udp", port)
		if err != nil {
			return nil, err
		}
		ips, err := net.DefaultResolver.LookupIPAddr(ctx, host)
		for _, ip := range ips {
			addrs = append(addrs, &net.UDPAddr{IP: ip.IP, Zone: ip.Zone, Port: number})
		}
		return addrs, err
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
