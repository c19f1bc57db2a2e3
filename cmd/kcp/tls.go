package main

import (
	"crypto/tls"
	"errors"
	"strings"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/identity"
)

// tlsFlags are the flags of TLS. Which of them a subcommand has depends on its
// end.
type tlsFlags struct {
	on          bool   // -tls
	cert, key   string // files in PEM; empty: not given
	ca          string // file in PEM; empty: the system's authorities
	name        string // of the server; empty: the host of its address
	fingerprint string // of the server's key; empty: an authority vouches for it
	protocol    string // ALPN; empty: none
}

// listenOptions returns the flags of a listening end.
func (f *tlsFlags) listenOptions() []option {
	return []option{
		{"tls-cert", "PATH", "accept only sessions with TLS 1.3, with this\ncertificate (PEM, the chain after it)", text(&f.cert)},
		{"tls-key", "PATH", "its private key (PEM)", text(&f.key)},
		{"ca", "PATH", "with -tls-cert, accept only clients with a\ncertificate of these authorities (PEM)", text(&f.ca)},
		{"alpn", "NAME", "with TLS, the application protocol", text(&f.protocol)},
	}
}

// dialOptions returns the flags of a dialling end.
func (f *tlsFlags) dialOptions() []option {
	return []option{
		{"tls", "", "use TLS 1.3, which a listener with -tls-cert requires", toggle(&f.on)},
		{"ca", "PATH", "with -tls, trust these authorities (PEM) instead of\nthe system's", text(&f.ca)},
		{"fingerprint", "SHA256:...", "use TLS, with a peer whose key has this fingerprint,\nas a server of kcptunnel prints it",
			func(s string) error {
				f.on = true
				return text(&f.fingerprint)(s)
			}},
		{"tls-name", "NAME", "with -tls, the name that the peer's certificate must\nhave; default: the host of ADDR", text(&f.name)},
		{"tls-cert", "PATH", "with -tls, show the peer this certificate (PEM)", text(&f.cert)},
		{"tls-key", "PATH", "its private key (PEM)", text(&f.key)},
		{"alpn", "NAME", "with TLS, the application protocol", text(&f.protocol)},
	}
}

// applyListen sets the TLS of a listening end.
func (f *tlsFlags) applyListen(c *kcp.Config) error {
	if f.cert == "" && f.key == "" {
		if f.ca != "" || f.protocol != "" {
			return usageErrorf("-ca and -alpn do nothing without -tls-cert")
		}
		return nil
	}
	t, err := f.config()
	if err != nil {
		return err
	}
	if t.ClientCAs = t.RootCAs; t.ClientCAs != nil {
		t.RootCAs, t.ClientAuth = nil, tls.RequireAndVerifyClientCert
	}
	return f.set(c, t)
}

// applyDial sets the TLS of a dialling end.
func (f *tlsFlags) applyDial(c *kcp.Config) error {
	if !f.on {
		if *f != (tlsFlags{}) {
			return usageErrorf("-ca, -alpn, -tls-name, -tls-cert and -tls-key do nothing without -tls")
		}
		return nil
	}
	t, err := f.config()
	if err != nil {
		return err
	}
	t.ServerName = f.name
	if f.fingerprint != "" {
		if err := identity.Check(f.fingerprint); err != nil {
			return usageErrorf("-fingerprint: %w", err)
		}
		identity.Pin(t, f.fingerprint)
	}
	return f.set(c, t)
}

// set sets the TLS of c, and checks that it fits the other settings.
func (f *tlsFlags) set(c *kcp.Config, t *tls.Config) error {
	c.TLS = t
	if c.LegacyPeers == kcp.LegacyAllow {
		return usageErrorf("-allow-legacy and TLS exclude each other")
	}
	return validate(c)
}

// config reads the files of the flags.
func (f *tlsFlags) config() (*tls.Config, error) {
	t := new(tls.Config)
	if (f.cert == "") != (f.key == "") {
		return nil, usageErrorf("-tls-cert and -tls-key go together")
	}
	if f.cert != "" {
		pair, err := identity.LoadPair(f.cert, f.key)
		if err != nil {
			return nil, usageErrorf("-tls-cert, -tls-key: %w", err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	if f.ca != "" {
		var err error
		if t.RootCAs, err = identity.LoadCAs(f.ca); err != nil {
			return nil, usageErrorf("-ca: %w", err)
		}
	}
	if f.protocol != "" {
		t.NextProtos = []string{f.protocol}
	}
	return t, nil
}

// noProtocol reports whether a handshake has failed because the ends have no application
// protocol in common.
func noProtocol(err error) bool {
	const alert = tls.AlertError(120) // no_application_protocol (RFC 7301 §3.2)
	var handshake *kcp.HandshakeError
	return errors.As(err, &handshake) && (errors.Is(err, alert) || strings.Contains(err.Error(), "ALPN") || strings.Contains(err.Error(), "no application protocol"))
}

// demoTLS is -tls of kcp demo: both ends are in this process, so a certificate
// is made for them.
func demoTLS() setting {
	return setting{"tls", "", "use TLS 1.3, with a certificate made for the demo", "", func(c *kcp.Config, value string) error {
		on, err := parseSwitch(value)
		if err != nil || !on {
			return err
		}
		const name = "demo"
		cert, err := identity.New(name)
		if err == nil {
			c.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: identity.Pool(cert), ServerName: name}
		}
		return err
	}}
}
