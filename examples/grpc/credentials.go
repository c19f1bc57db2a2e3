package main

import (
	"context"
	"errors"
	"net"

	"google.golang.org/grpc/credentials"

	"github.com/arqnet/kcp"
)

// sessionTLS are the credentials of gRPC for sessions with kcp.Config.TLS, at either end.
// The TLS handshake was done by Dial, or before Accept, so there is none here. Handlers
// find the peer's certificates in the peer's AuthInfo, a credentials.TLSInfo, and
// per-call credentials that demand a secure transport work.
type sessionTLS struct{}

// infoOf returns what TLS has agreed on for a session.
func infoOf(c net.Conn) (credentials.TLSInfo, error) {
	session, ok := c.(*kcp.Conn)
	if !ok || session.Peer().TLS == nil {
		return credentials.TLSInfo{}, errors.New("not a KCP session with TLS")
	}
	state := session.Peer().TLS
	if state.NegotiatedProtocol != protocol {
		return credentials.TLSInfo{}, errors.New("the peer does not name " + protocol + " in ALPN")
	}
	return credentials.TLSInfo{
		State:          *state,
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, nil
}

// ClientHandshake checks that the certificate is for the server that the calls name.
// Dial has verified it for the ServerName of its own settings, which may be another.
func (sessionTLS) ClientHandshake(_ context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	info, err := infoOf(c)
	if err == nil {
		err = info.ValidateAuthority(authority)
	}
	return c, info, err
}

func (sessionTLS) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	info, err := infoOf(c)
	return c, info, err
}

func (sessionTLS) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (s sessionTLS) Clone() credentials.TransportCredentials { return s }

// OverrideServerName is deprecated, and not called: use grpc.WithAuthority.
func (sessionTLS) OverrideServerName(string) error { return errors.New("use grpc.WithAuthority") }
