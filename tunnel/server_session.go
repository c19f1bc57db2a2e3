package tunnel

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/arqnet/kcp/internal/neterr"
	"github.com/arqnet/kcp/tunnel/internal/carrier"
)

// serverSession is the session of a client at the server.
type serverSession struct {
	session
	server   *Server
	identity *clientIdentity
	number   uint64 // of sessions, in the order in which they have begun
}

// user returns the user of the session; nil: it is gone from the users.
func (c *serverSession) user() *user { return c.identity.among(c.server.users.Load()) }

// certified reports whether one of the authorities of now has signed the certificate that
// the client is known by, if it is. If it has expired since, that does not end it.
func (c *serverSession) certified() bool {
	if !c.identity.certificate {
		return true
	}
	state := c.conn.TLS()
	return authorized(state, c.server.clientCAs.Load(), time.Now())
}

// authorized reports whether the certificate of a client leads to one of some
// authorities, whatever has expired since it was verified. An authority that was not
// among the authorities then, such as a renewed one, has to be valid now.
func authorized(state *tls.ConnectionState, authorities *x509.CertPool, now time.Time) bool {
	ageless := func(c *x509.Certificate) *x509.Certificate {
		copied := *c
		copied.NotBefore, copied.NotAfter = time.Time{}, time.Unix(1<<40, 0)
		return &copied
	}
	options := x509.VerifyOptions{
		Roots: authorities, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, one := range state.PeerCertificates[1:] {
		options.Intermediates.AddCert(ageless(one))
	}
	times := []time.Time{now}
	for _, chain := range state.VerifiedChains { // the authority of then was valid at its begin
		times = append(times, chain[len(chain)-1].NotBefore)
	}
	leaf := ageless(state.PeerCertificates[0])
	return slices.ContainsFunc(times, func(at time.Time) bool {
		options.CurrentTime = at
		_, err := leaf.Verify(options)
		return err == nil
	})
}

// leave does nothing: a server cannot begin a session.
func (c *serverSession) leave() bool { return false }

// remote returns what an opening counts for: SOCKS5 as a whole.
func (c *serverSession) remote(o opening) string {
	if o.kind == kindSocksTCP || o.kind == kindSocksUDP {
		return "socks"
	}
	return o.rule()
}

// admit says what to dial for the client.
func (c *serverSession) admit(o opening) (string, error) {
	switch o.kind {
	case kindTCP, kindUDP, kindSocksTCP, kindSocksUDP:
	default:
		return "", refusal(codeMalformed)
	}
	return c.allowed(o, canonicalTarget)
}

// allowed returns the target of an opening as this host has it, if the user may have that.
func (c *serverSession) allowed(o opening, canonical func(string) (string, error)) (target string, err error) {
	if target, err = canonical(o.target); err != nil {
		return "", refusal(codeMalformed)
	}
	if target, err = zoneHere(target); err != nil {
		return "", &dialError{codeForbidden, err}
	}
	o.target = target
	if user := c.user(); user == nil || !user.allows(o) {
		return "", refusal(codeForbidden)
	}
	return target, nil
}

// listen listens for the client, until that ends the stream, or another session of the
// same user takes over.
func (c *serverSession) listen(ctx context.Context, stream carrier.Stream, o opening) {
	target, err := c.allowed(o, canonicalListen)
	if err != nil {
		c.refuse(stream, o, err)
		return
	}
	o.target = target
	if !c.account.addConn() {
		c.refuse(stream, o, &dialError{codeFailed, errTooMany})
		return
	}
	defer c.account.removeConn()
	listening, end := context.WithCancelCause(ctx)
	defer end(nil)
	mine, err := c.claim(ctx, o, end)
	if err != nil {
		c.refuse(stream, o, err)
		return
	}
	if !mine.allowed() { // not since the users have changed
		end(codeForbidden)
	}
	s, err := whileStream(ctx, stream, mine.listen)
	if err != nil {
		c.server.claims.release(mine)
		c.refuse(stream, o, listenError(err))
		return
	}
	c.server.claims.listens(mine, s)
	at, port := addressOf(s)
	log := c.log.With("kind", o.kind, "address", at)
	log.Info("listening")
	c.serving.Go(func() {
		c.listenUntil(listening, stream, port)
		_ = s.Close()
		c.server.claims.release(mine)
		log.Info("no longer listening")
	})
	e := entry{log: log, failed: slog.LevelDebug, socks: o.kind == kindListenSocks, limited: true, of: c.account, remote: o.rule()}
	e.open = func(ctx context.Context, k kind, target string) (*session, carrier.Stream, error) {
		back := opening{kind: kindReverseTCP, listener: stream.ID(), target: target}
		if k.packets() {
			back.kind = kindReverseUDP
		}
		out, err := c.open(ctx, back)
		return &c.session, out, err
	}
	e.serve(ctx, s) // what it accepts may go on until ctx is done
}

// listenUntil tells the client the port, and waits until it ends the stream, or ctx is
// done.
func (c *serverSession) listenUntil(ctx context.Context, stream carrier.Stream, port int) {
	stop := context.AfterFunc(ctx, func() { _ = stream.Reset(uint64(endOf(ctx))) })
	defer stop()
	answer := binary.BigEndian.AppendUint16([]byte{statusOpen}, uint16(port))
	if _, err := stream.Write(answer); err == nil {
		_, _ = io.Copy(io.Discard, stream)
	}
	_ = stream.Close()
}

// listenError returns why it was not possible to listen.
func listenError(err error) error {
	var dns *net.DNSError
	switch {
	case neterr.Is(err, syscall.EADDRINUSE):
		return &dialError{codeInUse, err}
	case errors.As(err, &dns):
		return &dialError{codeUnresolvable, err}
	}
	return &dialError{codeFailed, err}
}
