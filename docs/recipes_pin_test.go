package docs

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/identity"
	"github.com/arqnet/kcp/internal/testenv"
)

// keyed returns the settings of a server with the key of a file, which it makes if there
// is none, and the fingerprint of that.
func keyed(path string) (*kcp.Config, string, error) {
	cert, err := identity.Load(path, "game")
	if err != nil {
		return nil, "", err
	}
	return &kcp.Config{
		TLS:               &tls.Config{Certificates: []tls.Certificate{cert}},
		StatelessResetKey: identity.ResetKey(cert, "game"), // a killed server is missed at once
	}, identity.Fingerprint(cert.Leaf), nil
}

// pinned returns the settings of a client that knows the server by its key: neither a name
// nor an authority counts.
func pinned(fingerprints ...string) *kcp.Config {
	config := &kcp.Config{TLS: new(tls.Config)}
	identity.Pin(config.TLS, fingerprints...)
	return config
}

// TestPinned dials a server by the fingerprint of its key, which the command of the page
// prints, too, and by that of another.
func TestPinned(t *testing.T) {
	path := filepath.Join(t.TempDir(), "server.pem")
	server, want, err := keyed(path)
	require.NoError(t, err)
	other := testenv.TLS()
	conn, err := reconnectTo(t, server.TLS, pinned(identity.Fingerprint(other.Certificates[0].Leaf), want).TLS)
	require.NoError(t, err)
	require.Equal(t, want, identity.Fingerprint(conn.Peer().TLS.PeerCertificates[0]))
	require.NoError(t, conn.Close())

	_, err = reconnectTo(t, other, pinned(want).TLS)
	var handshake *kcp.HandshakeError
	require.ErrorAs(t, err, &handshake)
	require.ErrorContains(t, err, "not "+want)

	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("openssl is not installed")
	}
	page, err := os.ReadFile("recipes.md")
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(page), "\n## A server known by its key\n")
	script := strings.Split(rest, "```")[3]
	require.Contains(t, script, "openssl pkey")
	cmd := exec.Command("sh", "-e", "-c", script)
	cmd.Dir = filepath.Dir(path)
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Equal(t, want, strings.TrimSpace(string(out)))
}

// members returns the settings of a server for clients with certificates.
func members(cert tls.Certificate, authorities *x509.CertPool) *kcp.Config {
	return &kcp.Config{
		TLS: &tls.Config{
			Certificates: []tls.Certificate{cert},
			ClientAuth:   tls.RequireAndVerifyClientCert,
			ClientCAs:    authorities,
		},
		StatelessResetKey: identity.ResetKey(cert, "members"),
	}
}

// member returns the name of a client, which its certificate has.
func member(conn *kcp.Conn) string {
	return conn.Peer().TLS.PeerCertificates[0].Subject.CommonName
}

// TestMembers lets in a client with a certificate of an authority, and no other one.
func TestMembers(t *testing.T) {
	server := testenv.TLS().Certificates[0]
	ca := testenv.Certificate(t, nil, true, "authority")
	l, err := kcp.Listen("udp", "127.0.0.1:0", members(server, identity.Pool(ca)))
	require.NoError(t, err)
	defer l.Endpoint().Close()
	for name, by := range map[string]*tls.Certificate{"alice": &ca, "bob": &ca, "eve": nil} {
		client := &tls.Config{
			Certificates: []tls.Certificate{testenv.Certificate(t, by, false, name)},
			RootCAs:      identity.Pool(server), ServerName: "test",
		}
		client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &client.Certificates[0], nil // even if the server names other authorities
		}
		_, err := kcp.Dial("udp", l.Addr().String(), &kcp.Config{TLS: client})
		if by == nil {
			var handshake *kcp.HandshakeError
			require.ErrorAs(t, err, &handshake)
			require.True(t, handshake.Remote)
			continue
		}
		require.NoError(t, err)
		conn, err := l.Accept()
		require.NoError(t, err)
		require.Equal(t, name, member(conn.(*kcp.Conn)))
	}
}
