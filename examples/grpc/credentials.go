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

func (sessionTLS) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	state := c.(*kcp.Conn).Peer().TLS
	if state == nil || state.NegotiatedProtocol != protocol {
		return nil, nil, errors.New("not a session with TLS and ALPN " + protocol)
	}
	level := credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}
	return c, credentials.TLSInfo{State: *state, CommonAuthInfo: level}, nil
}

// ClientHandshake checks that the certificate is for the server that the calls name.
// Dial has verified it for the ServerName of its own settings, which may be another.
func (s sessionTLS) ClientHandshake(_ context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	_, info, err := s.ServerHandshake(c)
	if err == nil {
		err = info.(credentials.TLSInfo).ValidateAuthority(authority)
	}
	return c, info, err
}

func (sessionTLS) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}
func (s sessionTLS) Clone() credentials.TransportCredentials { return s }
func (sessionTLS) OverrideServerName(string) error           { return errors.ErrUnsupported }
