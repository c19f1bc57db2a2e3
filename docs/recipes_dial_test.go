package docs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
)

// endpoint returns an endpoint on a simulated network, and its socket, until the test ends.
func endpoint(t *testing.T, n *netsim.Network, addr string, config *kcp.Config) (*kcp.Endpoint, net.PacketConn) {
	pc, err := n.Listen(addr)
	require.NoError(t, err)
	e, err := kcp.NewEndpoint(pc, config)
	require.NoError(t, err)
	t.Cleanup(func() { e.Close(); pc.Close() })
	return e, pc
}

// session returns the two ends of a session over a simulated network without loss, and
// that network. It has to run in virtual time.
func session(t *testing.T, config *kcp.Config) (dialled, accepted *kcp.Conn, n *netsim.Network) {
	h := newHall(t, 1, config, netsim.LinkConfig{Delay: 5 * time.Millisecond})
	return h.dialled[0], h.accepted[0], h.net
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
	require.NoError(t, conn.Abort(0, ""))
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
		kcp.ErrTooManySessions, kcp.ErrMemoryPressure, kcp.ErrInUse, kcp.ErrNotDelivered,
	} {
		require.False(t, hopeless(&net.OpError{Op: "dial", Err: err}), err)
	}
	const badCertificate tls.AlertError = 42
	for _, err := range []error{
		&kcp.PeerCloseError{Code: kicked}, &kcp.PeerCloseError{Code: kicked, Aborted: true},
		&kcp.HandshakeError{Remote: true, Err: badCertificate}, &kcp.HandshakeError{Err: internalError},
		&kcp.HandshakeError{Remote: true, Err: errors.New("changed on the way")},
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
