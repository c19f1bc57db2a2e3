package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
)

const serverAddr = "10.0.0.1:4000"

// world is a server and clients on a simulated network in virtual time.
type world struct {
	*testing.T
	net            *netsim.Network
	server, client *kcp.Config
	dir            string // of the server
	kill           func() // ends the server as a process that is killed
	listener       *kcp.Listener
	host           string // address of sockets of clients; empty: port 5000
}

// inWorld runs a test with a server that is there.
func inWorld(t *testing.T, seed uint64, config func(t *testing.T) (server, client *kcp.Config), test func(t *testing.T, w *world)) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, filesDir), 0o700))
	synctest.Test(t, func(t *testing.T) {
		link := netsim.LinkConfig{Delay: 30 * time.Millisecond, Loss: 0.02, Rate: 100_000, Queue: 64 << 10}
		w := &world{T: t, net: netsim.NewNetwork(seed, link), dir: dir}
		w.server, w.client = config(t)
		w.serve()
		test(t, w)
		w.kill()
	})
}

// plain returns the settings of the program without TLS, secure those with TLS.
func plain(*testing.T) (server, client *kcp.Config) {
	return &kcp.Config{PeerTimeout: serverPatience}, &kcp.Config{PeerTimeout: clientPatience}
}

func secure(t *testing.T) (server, client *kcp.Config) {
	server, client = plain(t)
	cert := testenv.Certificate(t, nil, false, "localhost")
	roots := x509.NewCertPool()
	roots.AddCert(cert.Leaf)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{alpn}}
	server.StatelessResetKey = make([]byte, 32)
	client.TLS = &tls.Config{
		RootCAs: roots, ServerName: "localhost", NextProtos: []string{alpn},
		ClientSessionCache: tls.NewLRUClientSessionCache(1),
	}
	return server, client
}

// listen opens the server's socket, and its listener.
func (w *world) listen() (net.PacketConn, *kcp.Endpoint) {
	pc, err := w.net.Listen(serverAddr)
	require.NoError(w, err)
	e, err := kcp.NewEndpoint(pc, w.server)
	require.NoError(w, err)
	w.listener, err = e.Listen()
	require.NoError(w, err)
	return pc, e
}

// serve starts the server.
func (w *world) serve() {
	root, err := os.OpenRoot(w.dir)
	require.NoError(w, err)
	pc, e := w.listen()
	s := newServer(root, log.New(w.Output(), "server: ", 0))
	var running sync.WaitGroup
	l := w.listener
	running.Go(func() { _ = s.run(w.Context(), l) })
	w.kill = sync.OnceFunc(func() {
		_ = pc.Close()
		_ = e.Close()
		running.Wait()
		for _, in := range s.inboxes {
			_ = in.file.Close()
		}
		_ = root.Close()
	})
}

// restart kills the server, and starts it again after a while.
func (w *world) restart(after time.Duration) {
	w.kill()
	time.Sleep(after)
	w.serve()
}

// device is a client, and the sockets that it has opened.
type device struct {
	*client
	ended chan error
	stop  func()

	mu     sync.Mutex
	opened []*netsim.PacketConn
}

// sockets returns what the client has opened.
func (d *device) sockets() []*netsim.PacketConn {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.opened)
}

// start starts a client.
func (w *world) start(id byte, host string) *device {
	d := &device{ended: make(chan error, 1)}
	open := func() (net.PacketConn, error) {
		at := host + ":5000"
		if w.host != "" {
			at = w.host
		}
		pc, err := w.net.Listen(at)
		if err == nil {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.opened = append(d.opened, pc)
		}
		return pc, err
	}
	to := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(serverAddr))
	resolve := func(context.Context) ([]net.Addr, error) { return []net.Addr{to}, nil }
	d.client = newClient([idSize]byte{id}, w.client, open, resolve, log.New(w.Output(), host+": ", 0))
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.ended <- d.run(ctx)
	}()
	d.stop = func() { cancel(); <-done }
	w.Cleanup(d.stop)
	return d
}

// log returns the messages of a client that the server has, one on each line.
func (w *world) log(id byte) string {
	name := [idSize]byte{id}
	f, err := os.Open(filepath.Join(w.dir, hex.EncodeToString(name[:])+".log"))
	require.NoError(w, err)
	defer f.Close()
	var text strings.Builder
	for {
		m, err := readMessage(f, maxMessage)
		if err == io.EOF {
			return text.String()
		}
		require.NoError(w, err)
		fmt.Fprintln(&text, string(m))
	}
}

// numbered is what a server has that has got n messages.
func numbered(n int) string {
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "message %d\n", i)
	}
	return text.String()
}
