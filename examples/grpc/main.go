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
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log"
	"math/big"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/arqnet/kcp"
)

const (
	serverName = "grpc.example"
	protocol   = "h2" // ALPN: both ends have to name it
)

// settings returns the settings of the sessions. gRPC closes them on goroutines that
// serve others too, so Close must not wait for the peer's answer: written data, and
// the end, are delivered in the background.
func settings(config *tls.Config) *kcp.Config { return &kcp.Config{TLS: config, Linger: -1} }

// newServer returns a server of the service, and of gRPC's health service. Its Serve
// takes a *kcp.Listener with kcp.Config.TLS. See shutdown for its end.
func newServer(options ...grpc.ServerOption) *grpc.Server {
	s := grpc.NewServer(append(options, grpc.Creds(newCredentials()))...)
	s.RegisterService(&description, demoServer{})
	grpc_health_v1.RegisterHealthServer(s, health.NewServer())
	return s
}

// shutdown ends a server that serves l: the calls in progress finish, and what they
// have sent is delivered, or ctx ends. Sessions go on after gRPC has closed them until
// the client has all, so a program must not end before.
func shutdown(ctx context.Context, s *grpc.Server, l *kcp.Listener) error {
	stop := context.AfterFunc(ctx, s.Stop)
	defer stop()
	s.GracefulStop()
	return l.Shutdown(ctx)
}

// dialFunc opens a session with the server at an address.
type dialFunc func(ctx context.Context, address string) (net.Conn, error)

// newClient returns a client of the server at an address. It dials with the first
// call, and again after a session has ended.
func newClient(address string, dial dialFunc) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+address, // resolved by dial, if it is a name
		grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(newCredentials()),
		grpc.WithAuthority(serverName))
}

// newIdentities makes certificates, and returns the settings of a server and of the
// client of that name, which trust each other. Real programs would load certificates
// from files: examples/mtls has an authority that issues them.
func newIdentities(clientName string) (server, client *tls.Config, err error) {
	serverCert, err := newCertificate(serverName)
	if err != nil {
		return nil, nil, err
	}
	clientCert, err := newCertificate(clientName)
	if err != nil {
		return nil, nil, err
	}
	servers, clients := x509.NewCertPool(), x509.NewCertPool()
	servers.AddCert(serverCert.Leaf)
	clients.AddCert(clientCert.Leaf)
	server = &tls.Config{
		Certificates: []tls.Certificate{serverCert},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    clients,
		NextProtos:   []string{protocol},
	}
	client = &tls.Config{
		Certificates: []tls.Certificate{clientCert},
		RootCAs:      servers,
		ServerName:   serverName,
		NextProtos:   []string{protocol},
	}
	return server, client, nil
}

// newCertificate makes a certificate that is signed by itself.
func newCertificate(name string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: name},
		DNSNames:     []string{name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
}

// show makes a call of each kind.
func show(ctx context.Context, c *grpc.ClientConn) error {
	state, err := grpc_health_v1.NewHealthClient(c).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		return err
	}
	name, err := client{c}.WhoAmI(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("the server is %v, and knows us as %q\n", state.Status, name)

	counting, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client{c}.Count(counting, 0)
	if err != nil {
		return err
	}
	for {
		number, err := stream.Recv()
		if err != nil {
			fmt.Printf("the count has ended: %q\n", err) // with a text of the server's
			return nil
		}
		if number.Value == 1000 {
			fmt.Println("counted to", number.Value)
			cancel() // the server's Send fails
		}
	}
}

func run() error {
	server, client, err := newIdentities("alice")
	if err != nil {
		return err
	}
	l, err := kcp.Listen("udp", "127.0.0.1:0", settings(server))
	if err != nil {
		return err
	}
	s := newServer()
	defer s.Stop()
	go s.Serve(l) // until Stop or shutdown
	c, err := newClient(l.Addr().String(), func(ctx context.Context, address string) (net.Conn, error) {
		return kcp.DialContext(ctx, "udp", address, settings(client))
	})
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := show(ctx, c); err != nil {
		return err
	}
	return shutdown(ctx, s, l)
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}
