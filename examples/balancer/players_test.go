package balancer

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/selfsigned"
)

const serverName = "balancer.example"

// TestMain runs a server in place of the tests if the environment says so.
func TestMain(m *testing.M) {
	if addr := os.Getenv("KCP_BALANCER_SERVER"); addr != "" {
		err := serve(addr, os.Getenv("KCP_BALANCER_KIND"), os.Getenv("KCP_BALANCER_CERTIFICATES"))
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// serve is the process of a server.
func serve(addr, kind, certificates string) error {
	config, err := configOf(kind, certificates)
	if err != nil {
		return err
	}
	config.MaxSessionsPerAddress = 65536 // all clients have the balancer's address
	l, err := kcp.Listen("udp", addr, config)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			if _, err := io.WriteString(conn, addr+"\n"); err == nil {
				_, _ = io.Copy(conn, conn)
			}
		}()
	}
}

// configOf returns the settings of both ends of sessions of a kind: words out of
// "TLS" and "FEC".
func configOf(kind, certificates string) (*kcp.Config, error) {
	config := new(kcp.Config)
	if strings.Contains(kind, "FEC") {
		config.FEC = kcp.FEC{Data: 4, Parity: 2}
	}
	if strings.Contains(kind, "TLS") {
		cert, err := tls.LoadX509KeyPair(filepath.Join(certificates, "cert.pem"), filepath.Join(certificates, "key.pem"))
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		roots.AddCert(cert.Leaf)
		config.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: roots, ServerName: serverName}
	}
	return config, nil
}

// writeCertificates makes a certificate that all servers share, and returns its
// folder.
func writeCertificates(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cert, _, err := selfsigned.New(serverName)
	require.NoError(t, err)
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey.(*ecdsa.PrivateKey))
	require.NoError(t, err)
	for name, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: cert.Certificate[0]},
		"key.pem":  {Type: "PRIVATE KEY", Bytes: key},
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600))
	}
	return dir
}

// player is a client that sends blocks of random bytes, ten in a second, and
// compares what comes back.
type player struct {
	conn   *kcp.Conn
	server string // the name that the server has sent
	pause  *sync.RWMutex

	mu     sync.Mutex
	blocks int   // that have come back
	err    error // of the call that failed; nil: the session lives
}

// errWrongBytes is the error of a player whose bytes came back otherwise.
var errWrongBytes = errors.New("other bytes came back")

// join dials a session and begins to play. While pause is locked nothing is sent.
func join(t *testing.T, addr net.Addr, config *kcp.Config, pause *sync.RWMutex, seed uint64) (*player, error) {
	mine := *config
	mine.PeerTimeout = 5 * time.Second
	mine.KeepAlive = 25 * time.Second
	d := kcp.Dialer{Config: &mine}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, err := d.DialContext(ctx, "udp", addr.String())
	if err != nil {
		return nil, err
	}
	p := &player{conn: conn.(*kcp.Conn), pause: pause}
	t.Cleanup(func() { _ = p.conn.Abort() })
	if p.server, err = readLine(conn); err != nil {
		return nil, err
	}
	go p.play(rand.New(rand.NewPCG(seed, 1)))
	return p, nil
}

// readLine reads up to the first newline, and no further.
func readLine(r io.Reader) (string, error) {
	var line []byte
	for b := make([]byte, 1); ; line = append(line, b[0]) {
		if _, err := io.ReadFull(r, b); err != nil || b[0] == '\n' {
			return string(line), err
		}
	}
}

// play exchanges blocks until the session ends.
func (p *player) play(rng *rand.Rand) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		p.pause.RLock()
		err := p.exchange(rng)
		p.pause.RUnlock()
		p.mu.Lock()
		p.err = err
		p.blocks++
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// exchange sends a block and compares what comes back.
func (p *player) exchange(rng *rand.Rand) error {
	block := make([]byte, 1+rng.IntN(3000))
	for i := range block {
		block[i] = byte(rng.Uint32())
	}
	if _, err := p.conn.Write(block); err != nil {
		return err
	}
	back := make([]byte, len(block))
	if _, err := io.ReadFull(p.conn, back); err != nil {
		return err
	}
	if !bytes.Equal(block, back) {
		return errWrongBytes
	}
	return nil
}

// state returns how many blocks have come back, and why the session has ended.
func (p *player) state() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.blocks, p.err
}
