package tunnel

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/identity"
	"github.com/arqnet/kcp/tunnel/internal/carrier"
)

// ClientConfig holds the settings of a Client.
type ClientConfig struct {
	// Servers are the addresses of servers, as host:port of UDP. The client has a
	// session with each; new connections take the one that has least to do.
	Servers []string
	// Binds are local addresses, or names of network interfaces. The client has a
	// session with each server from each of them. Empty: the system chooses.
	Binds []string
	// Remotes are what the client wants.
	Remotes []Remote
	// User and Password are who the client is. Without them it is the owner of
	// Certificate.
	User, Password string
	// Certificate, if not nil, is shown to servers.
	Certificate *tls.Certificate
	// Fingerprints are fingerprints of servers' keys; one of them has to match. Without
	// any, servers need certificates of an authority.
	Fingerprints []string
	// RootCAs are the authorities of servers' certificates. nil means the authorities of
	// the system, or none if there are Fingerprints.
	RootCAs *x509.CertPool
	// TCPPort is the port of servers for TLS over TCP, which takes the place of UDP on
	// ways that let none pass. 0 means the port of UDP; negative: there is no TCP.
	TCPPort int
	// Proxy, if not nil, is through which servers are reached over TCP: http, https or
	// socks5, with a port, and the user and the password if it wants them.
	Proxy *url.URL
	// ServerName is the name that a server's certificate must have. Default: the
	// host of its address.
	ServerName string
	// RetryAfter is how long the client waits before it tries again to reach a
	// server, at first; it doubles up to MaxRetryAfter, and is up to a half less or
	// more at random. Up to a year (8760 h); defaults 200 ms and 30 s.
	RetryAfter, MaxRetryAfter time.Duration
	// MaxRetries is how often the client tries again in a row; 0: forever.
	MaxRetries int
	// OpenTimeout is how long a connection waits for a session with any server.
	// Up to a year, default 10 s.
	OpenTimeout time.Duration
	// DialTimeout is how long the targets of reverse remotes may take to answer.
	// Up to a year, default 10 s.
	DialTimeout time.Duration
	// UDPTimeout is after how long without packets a flow of UDP ends: up to a year,
	// default 2 min.
	UDPTimeout time.Duration
	// Stdin and Stdout are what a remote with Stdio connects.
	Stdin  io.Reader
	Stdout io.Writer
	// Listening, if not nil, is called with a remote and the address, of this end or
	// of the server, where connections for it are accepted from now on.
	Listening func(r Remote, at net.Addr)
	// Observe, if not nil, is called with the endpoint of each session that begins,
	// and what it returns when the session ends. Endpoints.Add of package observe is
	// such a function.
	Observe func(name string, e *kcp.Endpoint) (forget func())
	// KCP holds further settings of sessions; nil means the defaults. Its TLS, and
	// MaxStreams if it is 0, are set by the client.
	KCP *kcp.Config
	// Logger receives what happens; nil: nothing does. It must not block for long: sessions
	// wait for it.
	Logger *slog.Logger

	shutdown   time.Duration // how long ends in order may take; 0: shutdownTime
	maxLeaving int           // 0: maxLeaving
	tcpOnly    bool          // UDP is not tried
	connect    func(ctx context.Context, network, address string) (net.Conn, error)
}

// Client is the end of a tunnel that connects to servers. All methods are safe for
// concurrent use.
type Client struct {
	config   ClientConfig
	log      *slog.Logger
	settings *kcp.Config
	pool     pool
	account  *account
	tally    tally
	dials    dialTally
	attempts map[attemptsOf]*attemptTally
	serving  sync.WaitGroup // sessions of Run
	// listening counts the sessions through which servers listen.
	listening map[listened]*atomic.Int32

	certificate atomic.Pointer[tls.Certificate] // nil: there is none
}

// listened is a remote at a server.
type listened struct {
	server string
	remote Remote
}

// NewClient returns a client. It does nothing before Run.
func NewClient(config *ClientConfig) (*Client, error) {
	c := &Client{config: *config, log: config.Logger}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if len(config.Servers) == 0 {
		return nil, errors.New("tunnel: no server is given")
	}
	if len(config.Remotes) == 0 {
		return nil, errors.New("tunnel: no remote is given")
	}
	for _, b := range config.Binds {
		if _, err := parseBind(b); err != nil {
			return nil, fmt.Errorf("tunnel: %w", err)
		}
	}
	if config.Proxy != nil {
		if err := carrier.CheckProxy(config.Proxy); err != nil {
			return nil, fmt.Errorf("tunnel: proxy: %w", err)
		}
	}
	for _, f := range config.Fingerprints {
		if err := identity.Check(f); err != nil {
			return nil, fmt.Errorf("tunnel: %w", err)
		}
	}
	stdio := 0
	for _, r := range config.Remotes {
		if _, err := canonicalTarget(r.Target); err != nil && !r.Socks {
			return nil, fmt.Errorf("tunnel: %w", err)
		}
		if r.Stdio {
			stdio++
		}
	}
	if stdio > 1 {
		return nil, errors.New("tunnel: standard input and output serve one remote")
	}
	if stdio > 0 && (config.Stdin == nil || config.Stdout == nil) {
		return nil, errors.New("tunnel: a remote needs standard input and output, which are not given")
	}
	setDefault(&c.config.RetryAfter, 200*time.Millisecond)
	setDefault(&c.config.MaxRetryAfter, 30*time.Second)
	setDefault(&c.config.OpenTimeout, 10*time.Second)
	setDefault(&c.config.DialTimeout, defaultDialTimeout)
	setDefault(&c.config.UDPTimeout, defaultUDPTimeout)
	setDefault(&c.config.shutdown, shutdownTime)
	c.config.maxLeaving = cmp.Or(c.config.maxLeaving, maxLeaving)
	if err := checkTimes(times{
		"RetryAfter": c.config.RetryAfter, "MaxRetryAfter": c.config.MaxRetryAfter, "OpenTimeout": c.config.OpenTimeout,
		"DialTimeout": c.config.DialTimeout, "UDPTimeout": c.config.UDPTimeout,
	}); err != nil {
		return nil, err
	}
	c.account = newAccount(c.config.UDPTimeout)
	c.log = c.account.records.Limited(c.log)
	for _, r := range c.config.Remotes {
		c.tally.remote(r.name())
	}
	c.listening, c.attempts = make(map[listened]*atomic.Int32), make(map[attemptsOf]*attemptTally)
	for _, server := range c.config.Servers {
		for _, transport := range c.transports() {
			of := attemptsOf{server, transport}
			c.attempts[of] = newAttemptTally(of)
		}
		for _, r := range c.config.Remotes {
			c.listening[listened{server, r}] = new(atomic.Int32)
		}
	}
	c.settings = c.kcpSettings()
	if err := c.settings.Validate(); err != nil {
		return nil, err
	}
	return c, nil
}

// kcpSettings returns the settings of sessions.
func (c *Client) kcpSettings() *kcp.Config {
	s := withDefaults(c.config.KCP)
	t := &tls.Config{
		NextProtos: []string{protocol},
		MinVersion: tls.VersionTLS13,
		RootCAs:    c.config.RootCAs,
		ServerName: c.config.ServerName,
	}
	if c.config.Certificate != nil {
		c.certificate.Store(c.config.Certificate)
		warnOfTime(c.log, c.config.Certificate)
		t.GetClientCertificate = c.clientCertificate
	}
	if len(c.config.Fingerprints) > 0 {
		identity.Pin(t, c.config.Fingerprints...)
	}
	s.TLS = t
	return s
}

// clientCertificate returns what the client shows to a server, if that knows one of its
// authorities.
func (c *Client) clientCertificate(asked *tls.CertificateRequestInfo) (*tls.Certificate, error) {
	if own := c.certificate.Load(); asked.SupportsCertificate(own) == nil {
		return own, nil
	}
	return new(tls.Certificate), nil
}

// SetCertificate puts another certificate in place of ClientConfig's, which has
// to have one. Servers see it in new sessions.
func (c *Client) SetCertificate(certificate *tls.Certificate) error {
	if c.certificate.Load() == nil || certificate == nil {
		return errors.New("tunnel: the client has no certificate to replace")
	}
	warnOfTime(c.log, certificate)
	c.certificate.Store(certificate)
	return nil
}

// Status returns what there is now.
func (c *Client) Status() Status {
	var t Status
	for _, s := range c.pool.all() {
		t.add(&s.session)
	}
	return t
}

// Run carries out the remotes until ctx is done, which is not an error. It reaches
// servers again that are lost, that turn it away, or that are not the ones that they
// should be. Other errors are errors of listening; the last server's, if MaxRetries is
// reached, or, with stdio, it is turned away at the first attempt; and what stdio has
// ended with. When Run returns, everything has ended that it has begun, except for a Read
// of Stdin.
func (c *Client) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	locals, err := c.listenAll(ctx)
	if err != nil {
		cancel()
		return err
	}
	var running sync.WaitGroup
	ways := c.ways()
	failed := make(chan error, len(ways))
	for _, w := range ways {
		running.Go(func() { failed <- c.keepWay(ctx, w) })
	}
	piped := make(chan error, 1)
	for _, l := range locals {
		running.Go(func() { c.serve(ctx, l) })
	}
	for _, r := range c.config.Remotes {
		if r.Stdio {
			running.Go(func() { piped <- c.pipe(ctx, r) })
		}
	}
	err = c.wait(ctx, len(ways), failed, piped)
	cancel()
	for _, l := range locals {
		_ = l.socket.Close()
	}
	running.Wait()
	c.serving.Wait()
	return err
}

// wait waits until the client is to end, and returns why.
func (c *Client) wait(ctx context.Context, left int, failed, piped <-chan error) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-piped:
			return err
		case err := <-failed:
			if ctx.Err() != nil {
				return nil
			}
			if left--; left == 0 {
				return err
			}
			c.log.Error("server given up", "error", err)
		}
	}
}
