package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"log"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/examples/internal/lab"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
)

const (
	serverAddr = "10.0.0.1:4000"
	fileName   = "file"
	fileSize   = 4_000_000
	linkRate   = 1_000_000 // bytes a second, so the file takes four seconds and some
)

// world is a server with a directory, on a simulated network in virtual time.
type world struct {
	*testing.T
	net    *netsim.Network
	config *kcp.Config
	limits limits
	dir    string // of the server
	path   string // of the client's file
	data   []byte // of that file
}

// inWorld runs a test in virtual time. config makes the settings in the bubble.
func inWorld(t *testing.T, config func(t *testing.T) *kcp.Config, test func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		link := netsim.LinkConfig{Delay: 20 * time.Millisecond, Rate: linkRate, Queue: 100_000, Loss: 0.01}
		w := &world{
			T: t, net: netsim.NewNetwork(1, link), config: config(t), limits: defaultLimits(),
			dir: t.TempDir(), data: lab.Content(1, fileSize),
		}
		w.path = filepath.Join(t.TempDir(), fileName)
		require.NoError(t, os.WriteFile(w.path, w.data, 0o600))
		test(t, w)
	})
}

// plain returns the settings of the program without TLS.
func plain(*testing.T) *kcp.Config { return &kcp.Config{PeerTimeout: peerTimeout} }

// secure returns settings with TLS that serve either end.
func secure(t *testing.T) *kcp.Config {
	cert, roots := certificate(t)
	now := time.Now()
	return &kcp.Config{PeerTimeout: peerTimeout, StatelessResetKey: make([]byte, 32), TLS: &tls.Config{
		Certificates: []tls.Certificate{cert}, RootCAs: roots, ServerName: "localhost",
		NextProtos: []string{alpn}, Time: func() time.Time { return now },
	}}
}

// certificate makes a certificate for localhost, and trust in it.
func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	cert := testenv.Certificate(t, nil, false, "localhost")
	roots := x509.NewCertPool()
	roots.AddCert(cert.Leaf)
	return cert, roots
}

// endpoint returns an endpoint that is closed after the test.
func (w *world) endpoint(addr string) (*kcp.Endpoint, *netsim.PacketConn) {
	pc, err := w.net.Listen(addr)
	require.NoError(w, err)
	e, err := kcp.NewEndpoint(pc, w.config)
	require.NoError(w, err)
	w.Cleanup(func() { e.Close(); pc.Close() })
	return e, pc
}

// serve starts a server. kill ends it as a process that is killed: nobody is told.
func (w *world) serve() (s *server, kill func()) {
	root, err := os.OpenRoot(w.dir)
	require.NoError(w, err)
	e, pc := w.endpoint(serverAddr)
	l, err := e.Listen()
	require.NoError(w, err)
	s = newServer(root, w.limits, log.New(w.Output(), "server: ", 0))
	var running sync.WaitGroup
	running.Go(func() { _ = s.run(w.Context(), l) })
	end := func() {
		pc.Close()
		e.Close()
		running.Wait()
		root.Close()
	}
	w.Cleanup(end)
	return s, end
}

// dial opens a session from a host.
func (w *world) dial(host string) *kcp.Conn {
	e, _ := w.endpoint(host + ":0")
	conn, err := e.Dial(w.Context(), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(serverAddr)))
	require.NoError(w, err)
	return conn
}

// client returns a client on a host.
func (w *world) client(host string) *client {
	e, _ := w.endpoint(host + ":0")
	to := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(serverAddr))
	return &client{
		dial: func(ctx context.Context) (*kcp.Conn, error) { return e.Dial(ctx, to) },
		log:  log.New(w.Output(), host+": ", 0),
	}
}

// put sends the file from a host.
func (w *world) put(ctx context.Context, host string) error { return w.client(host).put(ctx, w.path) }

// request returns what the client says about the file.
func (w *world) request() *request {
	f, err := os.Open(w.path)
	require.NoError(w, err)
	defer f.Close()
	r, err := new(client).describe(w.Context(), f)
	require.NoError(w, err)
	return r
}

// ask asks for a transfer in a session, and returns what the server says that it has.
func ask(conn *kcp.Conn, r *request) (at int64, err error) {
	if _, err := conn.Write(r.bytes()); err != nil {
		return 0, err
	}
	err = binary.Read(conn, binary.BigEndian, &at)
	return at, err
}

// part returns the file of a transfer that is not complete.
func (w *world) part() string { return filepath.Join(w.dir, partsDir, w.request().id()) }

// stored returns how much the server has of a file that is not complete.
func (w *world) stored() int64 {
	info, err := os.Stat(w.part())
	require.NoError(w, err)
	return info.Size()
}

// requireComplete checks that the server has the file, and nothing else.
func (w *world) requireComplete() {
	w.Helper()
	got, err := os.ReadFile(filepath.Join(w.dir, fileName))
	require.NoError(w, err)
	require.True(w, bytes.Equal(w.data, got), "the server has other bytes")
	parts, err := os.ReadDir(filepath.Join(w.dir, partsDir))
	require.NoError(w, err)
	require.Empty(w, parts)
}

// requireSentOnce checks that what had arrived once was not sent again from a host, but
// for what was underway when a session was lost.
func (w *world) requireSentOnce(hosts ...string) {
	w.Helper()
	var arrived int64
	for _, host := range hosts {
		arrived += w.net.LinkStats(host, "").Delivered.Bytes
	}
	require.Less(w, arrived, int64(fileSize+fileSize/4))
}
