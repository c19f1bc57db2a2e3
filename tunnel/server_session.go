package tunnel

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/neterr"
)

// clientAt is the session of a client at the server.
type clientAt struct {
	session
	server   *Server
	identity *clientIdentity
	number   uint64 // of sessions, in the order in which they have begun
}

// user returns the user of the session; nil: it is gone from the users.
func (c *clientAt) user() *user { return c.identity.among(c.server.users.Load()) }

// certified reports whether one of the authorities of now has signed the certificate that
// the client is known by, if it is. If it has expired since, that does not end it.
func (c *clientAt) certified() bool {
	if !c.identity.certificate {
		return true
	}
	state := c.conn.ConnectionState().TLS
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

// admit says what to dial for the client.
func (c *clientAt) admit(o opening) (string, error) {
	switch o.kind {
	case kindTCP, kindUDP, kindSocksTCP, kindSocksUDP:
	default:
		return "", refusal(codeMalformed)
	}
	target, err := canonicalTarget(o.target)
	if err != nil {
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
func (c *clientAt) listen(ctx context.Context, stream *kcp.Stream, o opening) {
	target, err := canonicalListen(o.target)
	if err != nil {
		c.refuse(stream, o, refusal(codeMalformed))
		return
	}
	if target, err = zoneHere(target); err != nil {
		c.refuse(stream, o, &dialError{codeForbidden, err})
		return
	}
	o.target = target
	if user := c.user(); user == nil || !user.allows(o) {
		c.refuse(stream, o, refusal(codeForbidden))
		return
	}
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
	if o.kind == kindListenUDP {
		c.listenUDP(listening, ctx, stream, mine)
	} else {
		c.listenTCP(listening, ctx, stream, mine)
	}
}

// listenTCP listens for connections, until listening is done. What it accepts may go on
// until ctx is.
func (c *clientAt) listenTCP(listening, ctx context.Context, stream *kcp.Stream, mine *claim) {
	o := mine.asked
	l, err := whileStream(ctx, stream, mine.listenTCP)
	if err != nil {
		c.server.claims.release(mine)
		c.refuse(stream, o, listenError(err))
		return
	}
	c.server.claims.listens(mine, l.(*net.TCPListener))
	c.log.Info("listening", "kind", o.kind, "address", l.Addr())
	c.serving.Go(func() {
		c.held(listening, stream, l.Addr().(*net.TCPAddr).Port)
		_ = l.Close()
		c.server.claims.release(mine)
		c.log.Info("no longer listening", "address", l.Addr())
	})
	if o.kind == kindListenSocks {
		accept(l, c.log, func(conn *net.TCPConn) {
			if !c.account.addConn() {
				abort(conn)
				c.log.Info("connection refused", "kind", o.kind, "from", conn.RemoteAddr(), "error", errTooMany)
				return
			}
			defer c.account.removeConn()
			serveSocks(ctx, conn, c.log, c.account, func(ctx context.Context, k kind, target string) (*session, *kcp.Stream, error) {
				k = map[kind]kind{kindSocksTCP: kindReverseTCP, kindSocksUDP: kindReverseUDP}[k]
				s, err := c.open(ctx, opening{k, stream.ID(), target})
				return &c.session, s, err
			})
		})
		return
	}
	accept(l, c.log, func(conn *net.TCPConn) {
		if !c.account.addConn() {
			abort(conn)
			c.log.Info("connection refused", "kind", o.kind, "from", conn.RemoteAddr(), "error", errTooMany)
			return
		}
		defer c.account.removeConn()
		began := time.Now()
		s, err := c.open(ctx, opening{kind: kindReverseTCP, listener: stream.ID()})
		if err != nil {
			abort(conn)
			return
		}
		err = c.relay(conn, s, true)
		c.log.Debug("connection ended", "kind", o.kind, "address", l.Addr(), "from", conn.RemoteAddr(), since(began), cause(err))
	})
}

// listenUDP is listenTCP for packets.
func (c *clientAt) listenUDP(listening, ctx context.Context, stream *kcp.Stream, mine *claim) {
	o := mine.asked
	pc, err := whileStream(ctx, stream, mine.listenUDP)
	if err != nil {
		c.server.claims.release(mine)
		c.refuse(stream, o, listenError(err))
		return
	}
	c.server.claims.listens(mine, pc.(*net.UDPConn))
	c.log.Info("listening", "kind", o.kind, "address", pc.LocalAddr())
	c.serving.Go(func() {
		c.held(listening, stream, pc.LocalAddr().(*net.UDPAddr).Port)
		_ = pc.Close()
		c.server.claims.release(mine)
		c.log.Info("no longer listening", "kind", o.kind, "address", pc.LocalAddr())
	})
	open := func(string) (*session, *kcp.Stream, error) {
		s, err := c.open(ctx, opening{kind: kindReverseUDP, listener: stream.ID()})
		return &c.session, s, err
	}
	f := front{pc: pc.(*net.UDPConn), log: c.log.With("address", pc.LocalAddr()), limited: true, open: open}
	f.serve()
}

// held tells the client the port, and waits until it ends the stream, or ctx is done.
func (c *clientAt) held(ctx context.Context, stream *kcp.Stream, port int) {
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
