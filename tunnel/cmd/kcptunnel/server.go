package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/arqnet/kcp/identity"
	"github.com/arqnet/kcp/tunnel"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/urfave/cli/v3"
)

// server returns the command server.
func (p *program) server() *cli.Command {
	return &cli.Command{
		Name: "server", Usage: "accept clients, and open connections for them", ArgsUsage: "[HOST]:PORT",
		Description: "Prints the fingerprint of its key, which clients need. SIGHUP reads the files of\n" +
			"users and certificates again. SIGUSR2 starts the program again, which may be another\n" +
			"version by then, without losing a connection (Linux).\n\n" +
			"The file of -auth is a JSON object as for chisel,\n" +
			"{\"user:password\": [\"^127\\\\.0\\\\.0\\\\.1:80$\", \"^R:0\\\\.0\\\\.0\\\\.0:2222$\"]}, with\n" +
			"regular expressions for what each user may reach, from ^ to $.",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "listen", Usage: "UDP `ADDR` to listen on, in place of the argument"},
			&cli.StringFlag{Name: "tcp", Usage: "`ADDR` for TLS over TCP, for clients that UDP does not reach; none: nowhere (default: the address for UDP, if it is free)", Validator: tcpAddress},
			&cli.StringFlag{Name: "auth", Usage: "`FILE` of users and what each may reach"},
			&cli.BoolFlag{Name: "unanchored-rules", Usage: "take rules without ^ and $, which match anywhere in what is asked for: files of chisel"},
			&cli.StringFlag{Name: "key", Value: "server.pem", Usage: "`FILE` of the private key, which is made if the file does not exist"},
			&cli.StringFlag{Name: "cert", Usage: "`FILE` of a certificate for the key that an authority has signed"},
			&cli.StringFlag{Name: "client-ca", Usage: "`FILE` of the authorities that sign client certificates, which replace passwords"},
			&cli.DurationFlag{Name: "drain", Usage: "how long a process that SIGUSR2 has replaced keeps its connections (default: until the last has ended)", Validator: notNegative[time.Duration], HideDefault: true},
			&cli.IntFlag{Name: "shards", Usage: "sockets on the port, each with its own reader, for many processors (Linux)", Validator: notNegative[int], HideDefault: true},
			statusDirFlag(),
		}, slices.Concat(timeFlags(), sessionFlags(), serverSessionFlags(), commonFlags())...),
		Action: p.runServer,
	}
}

// runServer runs a server until ctx is done.
func (p *program) runServer(ctx context.Context, c *cli.Command) error {
	reloads, ignoreReloads := signals(p.notify) // signals that come before it serves wait
	defer ignoreReloads()
	upgrades, ignoreUpgrades := signals(signalUpgrade)
	defer ignoreUpgrades()
	log, err := p.begin(c)
	if err != nil {
		return err
	}
	config, err := serverConfig(c)
	if err != nil {
		return err
	}
	config.Logger = log
	warnOfMode(log, "auth", c.String("auth"), true)
	warnOfMode(log, "key", c.String("key"), true)
	warnOfRules(log, config.Users)
	if c.Bool(checkFlag) {
		note := ""
		if _, err := os.Stat(c.String("key")); err != nil {
			note = ": a start makes the key " + c.String("key")
		}
		return p.checked(c, note, config.Validate())
	}
	quiet := *config
	quiet.Logger = nil // tunnel.Listen has the warnings
	if err := quiet.Validate(); err != nil {
		return &usageError{c.FullName(), err}
	}
	begun, read := time.Now(), new(lastRead)
	read.note(true)
	seen := &look{log: log}
	up, err := newUpgrader(log, p.args, config, seen, c.String("debug"))
	if err != nil {
		return err
	}
	var s *tunnel.Server
	config.Reload = func() { read.note(reloadServer(s, c, log)) }
	if s, err = tunnel.Listen(config); err != nil {
		return fmt.Errorf("cannot listen on %s: %w", config.Addr, err)
	}
	seen.endpoints.Add("server", s.Endpoint())
	seen.endpoints.NameSessions(s.UserOf)
	seen.collectors = []prometheus.Collector{collector(func(to series) { to.server(s.Figures()) }), collector(read.collect)}
	seen.status = func() *processStatus {
		one := newProcessStatus("server", begun, s.Peers())
		one.Address = s.Addr().String()
		return one
	}
	hide, stop, err := seen.serve(c)
	if err != nil {
		_ = s.Close()
		return err
	}
	defer stop()
	up.after = hide
	fmt.Fprintf(p.stdout, "fingerprint %s\n", s.Fingerprint())
	log.Info("listening", "address", s.Addr(), "tcp", s.TCPAddr(), "users", config.Users.Len(), "fingerprint", s.Fingerprint())
	defer sayEnd(ctx, log)()
	up.ready(s)
	return up.serve(ctx, s, upgrades, reloads)
}

// serverConfig returns what the flags say.
func serverConfig(c *cli.Command) (*tunnel.ServerConfig, error) {
	addr := c.String("listen")
	switch c.Args().Len() {
	case 0:
	case 1:
		addr = c.Args().First()
	default:
		return nil, wrong(c, "want one address, not %d: %q", c.Args().Len(), c.Args().Slice())
	}
	if addr == "" {
		return nil, wrong(c, "want an address to listen on, such as :4000")
	}
	if !validAddress(addr, 0) {
		return nil, wrong(c, "%q is not an address: want [HOST]:PORT, such as :4000", addr)
	}
	if c.String("auth") == "" {
		return nil, wrong(c, "want -auth FILE: who may connect, and what each may reach")
	}
	config := &tunnel.ServerConfig{
		Addr: addr, TCP: c.String("tcp"), DialTimeout: c.Duration("dial-timeout"), UDPTimeout: c.Duration("udp-timeout"),
		Drain: c.Duration("drain"), KCP: sessionConfig(c),
	}
	var mistakes [3]error
	config.Users, mistakes[0] = loadUsers(c)
	if path := c.String("client-ca"); path != "" {
		if config.ClientCAs, mistakes[1] = identity.LoadCAs(path); mistakes[1] != nil {
			mistakes[1] = fmt.Errorf("-client-ca: %w", mistakes[1])
		}
	}
	load := tunnel.LoadKey
	if c.Bool(checkFlag) || errors.Join(mistakes[:]...) != nil { // nothing starts
		load = checkKey
	}
	config.Certificate, mistakes[2] = serverCertificate(c, load)
	if err := errors.Join(mistakes[:]...); err != nil {
		return nil, &usageError{c.FullName(), err}
	}
	return config, nil
}

// loadUsers reads the file of users.
func loadUsers(c *cli.Command) (*tunnel.Users, error) {
	if c.Bool("unanchored-rules") {
		return tunnel.LoadUnanchoredUsers(c.String("auth"))
	}
	return tunnel.LoadUsers(c.String("auth"))
}

// warnOfRules warns of what may not be meant in the file of users.
func warnOfRules(log *slog.Logger, users *tunnel.Users) {
	for _, text := range users.Warnings() {
		log.Warn("a rule may not be what is meant", "flag", "auth", "rule", text)
	}
}

// serverCertificate returns what the server is to show; load reads its key, if that is all.
func serverCertificate(c *cli.Command, load func(path string) (tls.Certificate, error)) (tls.Certificate, error) {
	if cert := c.String("cert"); cert != "" {
		pair, err := identity.LoadPair(cert, c.String("key"))
		if err != nil {
			return pair, fmt.Errorf("-cert, -key: %w", err)
		}
		return pair, nil
	}
	if c.String("key") == "" {
		return tls.Certificate{}, errors.New("-key is empty: want a FILE")
	}
	key, err := load(c.String("key"))
	if err != nil {
		return key, fmt.Errorf("-key: %w", err)
	}
	return key, nil
}

// checkKey is tunnel.LoadKey, and makes no file.
func checkKey(path string) (tls.Certificate, error) {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return tunnel.LoadKey(path)
	}
	if _, err := os.Stat(filepath.Dir(path)); err != nil { // where it is to be made
		return tls.Certificate{}, err
	}
	return identity.New("kcptunnel")
}

// tcpAddress checks what -tcp takes.
func tcpAddress(s string) error {
	if s != "none" && !validAddress(s, 0) {
		return fmt.Errorf("%q is not an address: want [HOST]:PORT, or none", s)
	}
	return nil
}

// validAddress reports whether addr is host:port, with a port of least or more.
func validAddress(addr string, least uint64) bool {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n >= least
}
