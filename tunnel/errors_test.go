package tunnel

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

// What an operator reads names the likeliest cause first, and the flag that mends it, and
// nothing of the library's words.
func TestExplained(t *testing.T) {
	leaf, err := leafOf(newAuthority(t).issue(t, "kcptunnel", time.Hour))
	require.NoError(t, err)
	unknown := &tls.CertificateVerificationError{UnverifiedCertificates: []*x509.Certificate{leaf}, Err: x509.HostnameError{Certificate: leaf, Host: "a"}}
	bind := &net.OpError{Op: "listen", Err: syscall.EADDRINUSE}
	for want, err := range map[string]error{
		"no answer from a:4000 in 10s: is UDP port 4000 open in the firewalls": &kcp.NoAnswerError{Waited: 10 * time.Second},
		"in 1s: network is unreachable: is the network up":                     &net.OpError{Op: "dial", Err: &kcp.NoAnswerError{Waited: time.Second, Socket: syscall.ENETUNREACH}},
		"session closed by the peer with code 9":                               &kcp.PeerCloseError{Code: 9},
		"does the server run, on UDP port 4000":                                &net.OpError{Op: "dial", Err: kcp.ErrRefused},
		"for 30s (-peer-timeout)":                                              &kcp.PeerLostError{Silence: 30 * time.Second},
		"-idle-timeout":                                                        &kcp.PeerLostError{Idle: true},
		"has ended the session: taken from the file":                           &kcp.PeerCloseError{Code: closeRevoked, Text: "taken from the file"},
		"was started again":                                                    kcp.ErrReset,
		"give -fingerprint " + Fingerprint(leaf) + " if that is what":          &kcp.HandshakeError{Err: unknown},
		"-tls-name NAME":                                                       &kcp.HandshakeError{Err: unknown},
		"(-fingerprint): if the server was given another key":                  &kcp.HandshakeError{Err: &FingerprintError{Got: "SHA256:x"}},
		"see -tls-cert here":                                                   &kcp.HandshakeError{Remote: true, Err: tls.AlertError(42)},
		"no kcptunnel, or of another version":                                  &kcp.HandshakeError{Remote: true, Err: tls.AlertError(120)},
		"it does not use TLS":                                                  &kcp.HandshakeError{Err: kcp.ErrNoTLS},
		"a.invalid has no address":                                             &net.DNSError{Name: "a.invalid", IsNotFound: true},
		"/etc/resolv.conf":                                                     &net.DNSError{Name: "a", IsTimeout: true},
		"another process has the port":                                         bind,
		"CAP_NET_BIND_SERVICE":                                                 syscall.EACCES,
		"LimitNOFILE":                                                          syscall.EMFILE,
	} {
		got := explain("a:4000", err)
		require.ErrorContains(t, got, want)
		require.ErrorIs(t, got, err)
		require.NotContains(t, got.Error(), "kcp: ")
	}
	require.ErrorContains(t, explain(theClient, &kcp.HandshakeError{Err: unknown}), "-client-ca")
	require.NoError(t, explain("a:1", nil))
}

// natted is a socket of a server whose clients get other addresses when moved is set.
type natted struct {
	net.PacketConn
	moved atomic.Bool
}

func (s *natted) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := s.PacketConn.ReadFrom(b)
	if at, ok := from.(*net.UDPAddr); ok && s.moved.Load() {
		from = &net.UDPAddr{IP: net.IPv4(127, 0, 0, 9), Port: at.Port}
	}
	return n, from, err
}

func (s *natted) WriteTo(b []byte, to net.Addr) (int, error) {
	return s.PacketConn.WriteTo(b, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: to.(*net.UDPAddr).Port})
}

// A record says that a client has another address.
func TestClientMoves(t *testing.T) {
	t.Parallel()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = pc.Close() })
	socket := &natted{PacketConn: pc}
	s := startServer(t, everything, func(c *ServerConfig) { c.Socket = socket })
	c := startClient(t, clientConfig(t, s, "0:"+testenv.Target(t, testenv.Echo)))
	at := c.address(t)
	exchange(t, dial(t, at), 1000)
	socket.moved.Store(true)
	waitFor(t, func() bool {
		exchange(t, dial(t, at), 1000)
		return strings.Contains(s.log.String(), `msg="client moved" user=me from=127.0.0.1:`)
	})
	require.Contains(t, s.log.String(), "to=127.0.0.9:")
}
