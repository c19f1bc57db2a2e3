package docs

import (
	"context"
	"crypto/aes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
)

// rows returns the cells of a table of a page, the one whose head begins with a
// text.
func rows(t *testing.T, page, head string) (rows [][]string) {
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(text), "\n| "+head)
	require.True(t, ok, head)
	for _, line := range strings.Split(table, "\n")[2:] {
		if !strings.HasPrefix(line, "|") {
			break
		}
		var cells []string
		for _, cell := range strings.Split(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		rows = append(rows, cells)
	}
	require.NotEmpty(t, rows)
	return rows
}

// session returns the two ends of a session over a simulated network, and that
// network. It has to run in virtual time.
func session(t *testing.T, config *kcp.Config) (dialled, accepted *kcp.Conn, n *netsim.Network) {
	n = netsim.NewNetwork(1, netsim.LinkConfig{Delay: 5 * time.Millisecond})
	endpoint := func(addr string) *kcp.Endpoint {
		pc, err := n.Listen(addr)
		require.NoError(t, err)
		e, err := kcp.NewEndpoint(pc, config)
		require.NoError(t, err)
		t.Cleanup(func() { e.Close(); pc.Close() })
		return e
	}
	server, client := endpoint("10.0.0.1:4000"), endpoint("10.0.0.2:4000")
	l, err := server.Listen()
	require.NoError(t, err)
	dialled, err = client.Dial(context.Background(), server.LocalAddr())
	require.NoError(t, err)
	accepted, err = l.AcceptKCP(context.Background())
	require.NoError(t, err)
	return dialled, accepted, n
}

var duration = regexp.MustCompile(`^([0-9.]+) s`)

// parse returns the duration in a cell; -1 for never.
func parse(t *testing.T, cell string) time.Duration {
	if strings.HasPrefix(cell, "never") {
		return -1
	}
	m := duration.FindStringSubmatch(cell)
	require.NotNil(t, m, cell)
	s, err := strconv.ParseFloat(m[1], 64)
	require.NoError(t, err)
	return time.Duration(s * float64(time.Second))
}

// TestDeadPeers measures the table of dead peers.
func TestDeadPeers(t *testing.T) {
	for _, row := range rows(t, "settings.md", "`KeepAlive` | `PeerTimeout`") {
		config := kcp.Config{KeepAlive: parse(t, row[0]), PeerTimeout: parse(t, row[1])}
		for who, cell := range row[2:] {
			synctest.Test(t, func(t *testing.T) {
				dialled, accepted, network := session(t, &config)
				conn := dialled
				if who == 2 {
					conn = accepted
				}
				start := time.Now()
				time.Sleep(500 * time.Millisecond) // everything is acknowledged
				network.Play("", "", netsim.Outage(0, 10*time.Hour))
				if who == 0 {
					start = time.Now()
					_, err := conn.Write([]byte("x"))
					require.NoError(t, err)
				}
				want := parse(t, cell)
				require.NoError(t, conn.SetReadDeadline(start.Add(3*time.Hour)))
				_, err := conn.Read(make([]byte, 1))
				var lost *kcp.PeerLostError
				if want < 0 {
					require.False(t, errors.As(err, &lost), row)
					return
				}
				require.ErrorAs(t, err, &lost, row)
				took := time.Since(start)
				require.InDelta(t, want.Seconds(), took.Seconds(), 0.25, "%v, %d", row, who)
			})
		}
	}
}

// TestLargestMessages measures the table of the largest messages.
func TestLargestMessages(t *testing.T) {
	key := make([]byte, 32)
	configs := map[string]func() (kcp.Config, error){
		"nothing": func() (kcp.Config, error) { return kcp.Config{}, nil },
		"`FEC`":   func() (kcp.Config, error) { return kcp.Config{FEC: kcp.FEC{Data: 10, Parity: 3}}, nil },
		"`crypt.CFB`, `Salsa20`": func() (c kcp.Config, err error) {
			b, err := aes.NewCipher(key)
			return kcp.Config{Cipher: crypt.CFB(b)}, err
		},
		"`crypt.AESGCM`, `ChaCha20Poly1305`": func() (c kcp.Config, err error) {
			c.Cipher, err = crypt.AESGCM(key)
			return c, err
		},
		"`crypt.XChaCha20Poly1305`": func() (c kcp.Config, err error) {
			c.Cipher, err = crypt.XChaCha20Poly1305(key)
			return c, err
		},
		"`crypt.AESGCM` and `FEC`": func() (c kcp.Config, err error) {
			c.Cipher, err = crypt.AESGCM(key)
			c.FEC = kcp.FEC{Data: 10, Parity: 3}
			return c, err
		},
	}
	table := rows(t, "settings.md", "| bytes added")
	require.Len(t, table, len(configs))
	for _, row := range table {
		require.Contains(t, configs, row[0])
		config, err := configs[row[0]]()
		require.NoError(t, err)
		config.MessageMode, config.MaxMTU, config.WriteBuffer = true, -1, 1<<20
		added, err := strconv.Atoi(row[1])
		require.NoError(t, err)
		largest, err := strconv.Atoi(row[2])
		require.NoError(t, err)
		require.Equal(t, 127*(1400-24-added), largest)
		synctest.Test(t, func(t *testing.T) {
			conn, _, _ := session(t, &config)
			require.Equal(t, largest, conn.MaxMessageSize(), row[0])
			require.ErrorIs(t, conn.WriteMessage(make([]byte, largest+1)), kcp.ErrMessageTooLarge, row[0])
			require.NoError(t, conn.WriteMessage(make([]byte, largest)), row[0])
			require.NoError(t, conn.Abort())
		})
	}
}

// TestDrainAndReconnect runs the recipe for a restart on the same port: clients
// learn of it, and come back to the new process.
func TestDrainAndReconnect(t *testing.T) {
	config := &kcp.Config{SocketBuffer: -1}
	l, err := kcp.Listen("udp", "127.0.0.1:0", config)
	require.NoError(t, err)
	addr := l.Addr().String()
	const clients = 10
	var conns [clients]*kcp.Conn
	for i := range conns {
		conns[i], err = kcp.Dial("udp", addr, config)
		require.NoError(t, err)
		_, err := l.Accept()
		require.NoError(t, err)
	}
	drain(l, time.Minute)
	for _, conn := range conns {
		_, err := conn.Read(make([]byte, 1))
		var closed *kcp.PeerCloseError
		require.ErrorAs(t, err, &closed)
		require.Equal(t, uint64(restarting), closed.Code)
		require.NoError(t, conn.Close())
	}
	back := make(chan error)
	go func() {
		conn, err := reconnect(t.Context(), addr, config)
		if err == nil {
			err = conn.Close()
		}
		back <- err
	}()
	l, err = kcp.Listen("udp", addr, config)
	require.NoError(t, err)
	defer l.Close()
	conn, err := l.Accept()
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.NoError(t, <-back)
}

// TestReconnectTriesAgain is reconnect at a server that cannot load its certificate at
// first. TestReconnectGivesUp has a certificate that the client does not trust.
func TestReconnectTriesAgain(t *testing.T) {
	var hellos atomic.Int32
	client := testenv.TLS()
	server, cert := client.Clone(), client.Certificates[0]
	server.Certificates = nil
	server.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if hellos.Add(1) == 1 {
			return nil, errors.New("it is being replaced")
		}
		return &cert, nil
	}
	conn, err := reconnectTo(t, server, client)
	require.NoError(t, err)
	require.NoError(t, conn.Abort())
	require.EqualValues(t, 2, hellos.Load())
}

func TestReconnectGivesUp(t *testing.T) {
	client := testenv.TLS()
	client.RootCAs = x509.NewCertPool()
	_, err := reconnectTo(t, testenv.TLS(), client)
	var untrusted x509.UnknownAuthorityError
	require.ErrorAs(t, err, &untrusted)
	_, err = reconnectTo(t, testenv.TLS(), nil)
	require.ErrorIs(t, err, kcp.ErrTLSRequired)
	_, err = reconnectTo(t, nil, testenv.TLS())
	require.ErrorIs(t, err, kcp.ErrNoTLS)
}

// reconnectTo returns what reconnect does with a server, within seconds.
func reconnectTo(t *testing.T, server, client *tls.Config) (*kcp.Conn, error) {
	t.Helper()
	l, err := kcp.Listen("udp", "127.0.0.1:0", &kcp.Config{TLS: server})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Endpoint().Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	return reconnect(ctx, l.Addr().String(), &kcp.Config{TLS: client})
}

// Errors of the table before reconnect.
func TestHopeless(t *testing.T) {
	for _, err := range []error{
		kcp.ErrRefused, kcp.ErrReset, &kcp.NoAnswerError{}, &kcp.PeerLostError{}, syscall.ENETUNREACH,
		&kcp.PeerCloseError{Code: restarting}, &kcp.PeerCloseError{Code: restarting, Aborted: true},
		&kcp.HandshakeError{Remote: true, Err: internalError}, &net.DNSError{IsTimeout: true},
		kcp.ErrTooManySessions, kcp.ErrMemoryPressure, kcp.ErrConvInUse, kcp.ErrNotDelivered,
	} {
		require.False(t, hopeless(&net.OpError{Op: "dial", Err: err}), err)
	}
	const badCertificate tls.AlertError = 42
	for _, err := range []error{
		&kcp.PeerCloseError{Code: kicked}, &kcp.PeerCloseError{Code: kicked, Aborted: true},
		&kcp.HandshakeError{Remote: true, Err: badCertificate}, &kcp.HandshakeError{Err: internalError},
		&kcp.HandshakeError{Remote: true, Err: kcp.ErrHandshakeChanged},
		kcp.ErrNoTLS, kcp.ErrTLSRequired, &kcp.ConfigError{}, &net.DNSError{IsNotFound: true}, &net.AddrError{},
		net.ErrClosed, net.UnknownNetworkError("sctp"),
	} {
		require.True(t, hopeless(&net.OpError{Op: "dial", Err: err}), err)
	}
	for _, to := range [][2]string{
		{"udp", ""}, {"udp", ":"}, {"udp", "127.0.0.1"}, {"udp", "127.0.0.1:99999"}, {"udp", "127.0.0.1:nowhere"},
		{"udp4", "[::1]:4000"}, {"sctp", "127.0.0.1:4000"}, {"", "127.0.0.1:4000"},
	} {
		_, err := kcp.Dial(to[0], to[1], nil)
		require.Error(t, err, to)
		require.True(t, hopeless(err), err)
	}
	l, err := kcp.Listen("udp", "127.0.0.1:0", nil)
	require.NoError(t, err)
	require.NoError(t, l.Endpoint().Close())
	_, err = l.Endpoint().Dial(t.Context(), l.Addr())
	require.True(t, hopeless(err), err)
}

// TestDialAll opens several sessions on one endpoint in one round trip.
func TestDialAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := gameConfig()
		dialled, accepted, _ := session(t, &config)
		start := time.Now()
		conns := make([]*kcp.Conn, 3)
		require.NoError(t, dialAll(t.Context(), dialled.Endpoint(), accepted.LocalAddr(), conns))
		require.Equal(t, 10*time.Millisecond, time.Since(start).Round(time.Millisecond))
		for _, conn := range conns {
			require.Equal(t, fmt.Sprint(net.Addr(accepted.LocalAddr())), conn.RemoteAddr().String())
		}
	})
}
