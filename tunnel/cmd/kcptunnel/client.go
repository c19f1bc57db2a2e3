package main

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/arqnet/kcp/identity"
	"github.com/arqnet/kcp/tunnel"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/urfave/cli/v3"
)

// client returns the command client.
func (p *program) client() *cli.Command {
	return &cli.Command{
		Name: "client", Usage: "connect to servers, and carry connections through them", ArgsUsage: "HOST:PORT[,HOST:PORT...] REMOTE...",
		Description: "Remotes:\n\n" +
			"  8080:intranet:80         listen here, reach intranet:80 from the server (ssh -L)\n" +
			"  R:2222:localhost:22      listen at the server, reach this machine (ssh -R)\n" +
			"  socks                    SOCKS5 on 127.0.0.1:1080 (ssh -D); 5000:socks on port 5000\n" +
			"  R:socks                  SOCKS5 at the server, through this machine\n" +
			"  5353:1.1.1.1:53/udp      UDP\n" +
			"  stdio:host:22            standard input and output, for ssh's ProxyCommand\n\n" +
			"A remote may begin with the address to listen on, as in 0.0.0.0:8080:intranet:80.\n" +
			"The default is 127.0.0.1 here, and 0.0.0.0 at the server.",
		Flags: append([]cli.Flag{
			&cli.StringSliceFlag{Name: "server", Usage: "`HOST:PORT` of a server, in place of the first argument; several are separated by commas"},
			&cli.StringSliceFlag{Name: "remote", Usage: "`REMOTE`, in place of further arguments"},
			&cli.StringSliceFlag{Name: "fingerprint", Usage: "`SHA256:...` of the server's key, as the server prints it"},
			&cli.StringFlag{Name: "auth", Usage: "`USER:PASSWORD`; other users of this machine can see it here, but not in the environment", Sources: cli.EnvVars("KCPTUNNEL_AUTH")},
			&cli.StringFlag{Name: "tls-ca", Usage: "`FILE` of authorities that sign server certificates, in place of the system's"},
			&cli.StringFlag{Name: "tls-name", Usage: "`NAME` in the server's certificate, if it differs from its address"},
			&cli.StringFlag{Name: "tls-cert", Usage: "`FILE` of a client certificate, in place of a password"},
			&cli.StringFlag{Name: "tls-key", Usage: "`FILE` of its key"},
			&cli.StringSliceFlag{Name: "bind", Usage: "local `ADDRESSES` or interfaces, such as wlan0,eth0; each has a session of its own"},
			&cli.IntFlag{Name: "tcp-port", Usage: "`PORT` of servers for TLS over TCP, which is used where UDP does not pass; 0: never (default: that of UDP)", Validator: port, HideDefault: true},
			&cli.StringFlag{Name: "proxy", Usage: "`URL` of a proxy for TCP: http://, https:// or socks5://[USER:PASSWORD@]HOST:PORT", Sources: cli.EnvVars("KCPTUNNEL_PROXY")},
			&cli.IntFlag{Name: "max-retries", Usage: "give up after this many tries in a row (default: never)", Validator: notNegative[int], HideDefault: true},
			&cli.DurationFlag{Name: "max-retry-interval", Usage: "longest wait between tries (default: 30s)", Validator: notNegative[time.Duration], HideDefault: true},
			&cli.DurationFlag{Name: "open-timeout", Usage: "how long connections wait for a session with a server (default: 10s)", Validator: notNegative[time.Duration], HideDefault: true},
			statusDirFlag(),
		}, slices.Concat(timeFlags(), sessionFlags(), commonFlags())...),
		Action: p.runClient,
	}
}

// runClient runs a client until ctx is done, or it has ended by itself.
func (p *program) runClient(ctx context.Context, c *cli.Command) error {
	log, err := p.begin(c)
	if err != nil {
		return err
	}
	config, err := clientConfig(c)
	if err != nil {
		return err
	}
	config.Logger, config.Stdin, config.Stdout = log, p.stdin, p.stdout
	warnOfMode(log, "tls-key", c.String("tls-key"), true)
	if c.Bool(checkFlag) {
		_, err := tunnel.NewClient(config)
		return p.checked(c, "", err)
	}
	begun, read := time.Now(), new(lastRead)
	read.note(true)
	seen := &look{log: log}
	config.Observe = seen.endpoints.Add
	defer sayEnd(ctx, log)()
	client, err := tunnel.NewClient(config)
	if err != nil {
		return &usageError{c.FullName(), err}
	}
	seen.collectors = []prometheus.Collector{collector(func(s series) { s.client(client.Figures()) }), collector(read.collect)}
	seen.status = func() *processStatus {
		one := newProcessStatus("client", begun, client.Peers())
		one.Servers, one.Address = client.Figures().Servers, strings.Join(config.Servers, ",")
		return one
	}
	_, stop, err := seen.serve(c)
	if err != nil {
		return err
	}
	defer stop()
	if slices.ContainsFunc(config.Remotes, func(r tunnel.Remote) bool { return r.Stdio }) {
		ctx, stop = p.endsWithHangUp(ctx)
	} else {
		ctx, stop = p.survivesHangUp(ctx, func() { read.note(reloadClient(client, c, log)) })
	}
	defer stop()
	notifySystemd("READY=1")
	return client.Run(ctx)
}

// clientConfig returns what the flags say.
func clientConfig(c *cli.Command) (*tunnel.ClientConfig, error) {
	config := &tunnel.ClientConfig{
		Servers: c.StringSlice("server"), Fingerprints: c.StringSlice("fingerprint"), Binds: c.StringSlice("bind"), ServerName: c.String("tls-name"),
		MaxRetries: c.Int("max-retries"), MaxRetryAfter: c.Duration("max-retry-interval"), OpenTimeout: c.Duration("open-timeout"),
		DialTimeout: c.Duration("dial-timeout"), UDPTimeout: c.Duration("udp-timeout"), KCP: sessionConfig(c),
	}
	if config.TCPPort = c.Int("tcp-port"); config.TCPPort == 0 && c.IsSet("tcp-port") {
		config.TCPPort = -1
	}
	if text := c.String("proxy"); text != "" {
		var err error
		if config.Proxy, err = url.Parse(text); err != nil { // it has the password
			return nil, wrong(c, "-proxy: not a URL such as http://proxy.example:3128")
		}
	}
	remotes := c.StringSlice("remote")
	if args := c.Args().Slice(); len(args) > 0 {
		config.Servers = strings.Split(args[0], ",")
		if len(args) > 1 {
			remotes = args[1:]
		}
	}
	var mistakes []error
	for _, s := range config.Servers {
		if !validAddress(s, 1) || strings.HasPrefix(s, ":") {
			mistakes = append(mistakes, wrong(c, "server %q: want HOST:PORT, such as example.com:4000", s))
		}
	}
	for _, text := range remotes {
		r, err := tunnel.ParseRemote(text)
		if err != nil {
			mistakes = append(mistakes, &usageError{c.FullName(), err})
		}
		config.Remotes = append(config.Remotes, r)
	}
	switch {
	case len(config.Servers) == 0:
		mistakes = append(mistakes, wrong(c, "want a server, such as example.com:4000"))
	case len(config.Remotes) == 0:
		mistakes = append(mistakes, wrong(c, "want a remote, such as 8080:intranet:80"))
	}
	return config, errors.Join(append(mistakes, clientIdentity(c, config))...)
}

// clientIdentity sets who the client is, and whom it trusts.
func clientIdentity(c *cli.Command, config *tunnel.ClientConfig) (err error) {
	if config.User, config.Password, err = splitUser(c.String("auth")); err != nil {
		return &usageError{c.FullName(), err}
	}
	if path := c.String("tls-ca"); path != "" {
		if config.RootCAs, err = identity.LoadCAs(path); err != nil {
			return wrong(c, "-tls-ca: %w", err)
		}
	}
	cert, key := c.String("tls-cert"), c.String("tls-key")
	switch {
	case (cert == "") != (key == ""):
		return wrong(c, "-tls-cert and -tls-key go together")
	case cert != "":
		pair, err := identity.LoadPair(cert, key)
		if err != nil {
			return &usageError{c.FullName(), err}
		}
		config.Certificate = &pair
	case config.User == "":
		return wrong(c, "want -auth USER:PASSWORD, or -tls-cert and -tls-key")
	}
	return nil
}
