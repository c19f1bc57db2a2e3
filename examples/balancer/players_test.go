package balancer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
)

// server is a listener that sends its address to each client, and then what it receives.
type server struct {
	addr string
	kill func() // without a word to its clients
}

// startServer starts a server.
func startServer(t *testing.T, config *kcp.Config) *server {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	mine := *config
	mine.MaxSessionsPerAddress = 65536 // all clients have the balancer's address
	e, err := kcp.NewEndpoint(pc, &mine)
	require.NoError(t, err)
	l, err := e.Listen()
	require.NoError(t, err)
	addr := pc.LocalAddr().String()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if _, err := io.WriteString(conn, addr+"\n"); err == nil {
					_, _ = io.Copy(conn, conn)
				}
			}()
		}
	}()
	s := &server{addr, func() { _, _ = pc.Close(), e.Close() }}
	t.Cleanup(s.kill)
	return s
}

// configOf returns the settings of both ends of sessions of a kind: words out of
// "TLS" and "FEC".
func configOf(t *testing.T, kind string) *kcp.Config {
	t.Helper()
	config := new(kcp.Config)
	if strings.Contains(kind, "FEC") {
		config.FEC = kcp.FEC{Data: 4, Parity: 2}
	}
	if strings.Contains(kind, "TLS") {
		config.TLS = testenv.TLS()
	}
	return config
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
