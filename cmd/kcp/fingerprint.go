package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/arqnet/kcp"
)

const (
	// tunnelProtocol is the application protocol (ALPN) of kcptunnel.
	tunnelProtocol = "kcptunnel/1"
	// tunnelSession is how long a session with a server of kcptunnel is used: it ends one
	// that shows no user after 10 s.
	tunnelSession = 7 * time.Second
)

// checkFingerprint checks a fingerprint of a public key, as kcptunnel and ssh have them.
func checkFingerprint(s string) error {
	sum, ok := strings.CutPrefix(s, "SHA256:")
	if b, err := base64.RawStdEncoding.DecodeString(sum); !ok || err != nil || len(b) != sha256.Size {
		return errors.New("want SHA256: and 43 characters, as a server of kcptunnel prints it")
	}
	return nil
}

// fingerprintOf returns the fingerprint of a certificate's public key.
func fingerprintOf(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return "SHA256:" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// pin has c want a peer whose key has the fingerprint, instead of a certificate of an
// authority unless some are given.
func pin(c *tls.Config, fingerprint string) {
	c.InsecureSkipVerify = c.RootCAs == nil
	c.VerifyConnection = func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 {
			return errors.New("the peer did not present a certificate")
		}
		if got := fingerprintOf(state.PeerCertificates[0]); got != fingerprint {
			return fmt.Errorf("the peer's key has the fingerprint %s, not %s", got, fingerprint)
		}
		return nil
	}
}

// noProtocol reports whether a handshake has failed because the ends have no application
// protocol in common.
func noProtocol(err error) bool {
	const alert = tls.AlertError(120) // no_application_protocol (RFC 7301 §3.2)
	var handshake *kcp.HandshakeError
	return errors.As(err, &handshake) && (errors.Is(err, alert) || strings.Contains(err.Error(), "ALPN") || strings.Contains(err.Error(), "no application protocol"))
}

// openAny opens a session for pings, which are the same with every application protocol:
// without one, or with kcptunnel's, whichever the peer has. With -fingerprint
// kcptunnel's is tried first.
func (n *netcat) openAny(ctx context.Context) (*kcp.Conn, error) {
	if n.tls.protocol != "" || !n.tls.on {
		return n.open(ctx)
	}
	protocols := []string{"", tunnelProtocol}
	if n.tls.fingerprint != "" {
		protocols = []string{tunnelProtocol, ""}
	}
	var first error
	for _, p := range protocols {
		n.tls.protocol = p
		conn, err := n.open(ctx)
		if err == nil || !noProtocol(err) {
			return conn, err
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// renewal opens further sessions for pings.
type renewal struct {
	n      *netcat
	conn   *kcp.Conn // that is used now
	opened time.Time
}

// ping is Conn.Ping of the session that is used now.
func (r *renewal) ping(ctx context.Context) (time.Duration, error) { return r.conn.Ping(ctx) }

// withTunnel reports whether the peer is a server of kcptunnel.
func (r *renewal) withTunnel() bool {
	state := r.conn.ConnectionState().TLS
	return state != nil && state.NegotiatedProtocol == tunnelProtocol
}

// renew puts another session in place of one that the server is about to end.
func (r *renewal) renew(ctx context.Context) error {
	if time.Since(r.opened) < tunnelSession {
		return nil
	}
	d := kcp.Dialer{Config: r.n.cfg}
	conn, err := d.DialContext(ctx, "udp", r.n.address)
	if err != nil {
		return err
	}
	old := r.conn
	r.conn, r.opened = conn.(*kcp.Conn), time.Now()
	go func() { _ = old.Close() }() // which may wait
	return nil
}
