// Command grpc is a gRPC server and client over KCP sessions with kcp.Config.TLS, and
// certificates at both ends. The connection of gRPC is a session: gRPC has streams of
// its own, of HTTP/2, and dials again by itself when a session has ended.
//
// What one loses: all calls of a client share the order of one session, so a lost
// packet holds up the others, as with TCP; kcp.Conn.OpenStream would not. No program
// that speaks gRPC over TCP can call the server, and no proxy for HTTP/2 stands in
// front of it. What one gains is what KCP is for: less delay at loss, and sessions that
// survive a change of the client's address.
//
// KCP detects a lost peer (kcp.Config.PeerTimeout, KeepAlive), so gRPC needs no
// keep-alive. A call should have a deadline.
//
// It is a module of its own, so that the package does not depend on gRPC.
//
//	cd examples/grpc && go run .
package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"log"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/identity"
)

const (
	serverName = "grpc.example"
	protocol   = "h2" // ALPN: both ends have to name it
)

// settings returns the settings of the sessions. gRPC closes them on goroutines that
// serve others too, so Close must not wait for the peer's answer: written data, and
// the end, are delivered in the background.
func settings(config *tls.Config) *kcp.Config {
	c := &kcp.Config{TLS: config, Linger: -1}
	if config != nil && len(config.Certificates) > 0 {
		c.StatelessResetKey = identity.ResetKey(config.Certificates[0], "grpc")
	}
	return c
}

// calls are the settings of all calls. A killed server is Unavailable, or not there yet:
// each call is made again. So this is for calls that may be repeated; name those in
// methodConfig otherwise.
const calls = `{"methodConfig": [{"name": [{}], "waitForReady": true, "retryPolicy": {
	"maxAttempts": 5, "initialBackoff": "0.05s", "maxBackoff": "0.5s", "backoffMultiplier": 2,
	"retryableStatusCodes": ["UNAVAILABLE"]}}]}`

// newServer returns a server of gRPC's health service. Its Serve takes a *kcp.Listener
// with kcp.Config.TLS. See shutdown for its end.
func newServer() *grpc.Server {
	s := grpc.NewServer(grpc.Creds(sessionTLS{}), grpc.UnaryInterceptor(tellName))
	grpc_health_v1.RegisterHealthServer(s, health.NewServer())
	return s
}

// tellName tells the client, beside the answer, who it is by its certificate.
func tellName(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	p, _ := peer.FromContext(ctx)
	names := p.AuthInfo.(credentials.TLSInfo).State.PeerCertificates[0].DNSNames // there may be none
	if err := grpc.SetHeader(ctx, metadata.Pairs("you-are", strings.Join(names, ","))); err != nil {
		return nil, err
	}
	return handler(ctx, request)
}

// shutdown ends a server that serves l: the calls in progress finish, and what they
// have sent is delivered, or ctx ends. Sessions go on after gRPC has closed them until
// the client has all, so a program must not end before.
func shutdown(ctx context.Context, s *grpc.Server, l *kcp.Listener) error {
	defer context.AfterFunc(ctx, s.Stop)()
	s.GracefulStop()
	return l.Endpoint().Shutdown(ctx)
}

// redial is how long a client waits between dials.
var redial = backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second}

// newClient returns a client of the server that dial opens sessions with. It dials with
// the first call, and again after a session has ended.
func newClient(dial func(ctx context.Context) (net.Conn, error)) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+serverName,
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }),
		grpc.WithTransportCredentials(sessionTLS{}), grpc.WithAuthority(serverName), grpc.WithDefaultServiceConfig(calls),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: redial, MinConnectTimeout: 10 * time.Second}))
}

// identities makes certificates, and returns the settings of a server and of a client,
// which trust each other. Real programs load them from files (identity.LoadPair, LoadCAs).
func identities(client string) (forServer, forClient *tls.Config, err error) {
	serverCert, err := identity.New(serverName)
	if err != nil {
		return nil, nil, err
	}
	clientCert, err := identity.New(client)
	if err != nil {
		return nil, nil, err
	}
	return &tls.Config{
			Certificates: []tls.Certificate{serverCert}, NextProtos: []string{protocol},
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: identity.Pool(clientCert),
		}, &tls.Config{
			Certificates: []tls.Certificate{clientCert}, NextProtos: []string{protocol},
			RootCAs: identity.Pool(serverCert), ServerName: serverName,
		}, nil
}

// check asks whether the server serves, and who this client is for it.
func check(ctx context.Context, c *grpc.ClientConn) (status, name string, err error) {
	var header metadata.MD
	answer, err := grpc_health_v1.NewHealthClient(c).Check(ctx, new(grpc_health_v1.HealthCheckRequest), grpc.Header(&header))
	if err != nil {
		return "", "", err
	}
	return answer.Status.String(), strings.Join(header.Get("you-are"), ","), nil
}

func run(ctx context.Context) error {
	forServer, forClient, err := identities("alice")
	if err != nil {
		return err
	}
	l, err := kcp.Listen("udp", "127.0.0.1:0", settings(forServer))
	if err != nil {
		return err
	}
	s := newServer()
	defer s.Stop()
	go s.Serve(l) // until Stop or shutdown
	c, err := newClient(func(ctx context.Context) (net.Conn, error) {
		return (&kcp.Dialer{Config: settings(forClient)}).DialContext(ctx, "udp", l.Addr().String())
	})
	if err != nil {
		return err
	}
	defer c.Close()
	status, name, err := check(ctx, c)
	if err != nil {
		return err
	}
	fmt.Printf("the server is %s, and knows us as %q\n", status, name)
	return shutdown(ctx, s, l)
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}
