package docs

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
)

// fingerprint returns the SHA-256 of the public key of a certificate, in the form of ssh,
// kcp and kcptunnel. A new certificate for the same key has the same.
func fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return "SHA256:" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// pinned returns the Config.TLS of a client that knows the server by its key, so that
// neither a name nor an authority counts.
func pinned(want string) *tls.Config {
	return &tls.Config{
		InsecureSkipVerify: true, // VerifyConnection takes its place
		VerifyConnection: func(state tls.ConnectionState) error {
			if got := fingerprint(state.PeerCertificates[0]); got != want {
				return fmt.Errorf("the server's key has the fingerprint %s, not %s", got, want)
			}
			return nil
		},
	}
}

// TestPinned dials a server by the fingerprint of its key, and by that of another.
func TestPinned(t *testing.T) {
	server, other := testenv.TLS(), testenv.TLS()
	want := fingerprint(server.Certificates[0].Leaf)
	conn, err := reconnectTo(t, server, pinned(want))
	require.NoError(t, err)
	require.Equal(t, want, fingerprint(conn.Peer().TLS.PeerCertificates[0]))
	require.NoError(t, conn.Close())

	_, err = reconnectTo(t, other, pinned(want))
	var handshake *kcp.HandshakeError
	require.ErrorAs(t, err, &handshake)
	require.ErrorContains(t, err, "not "+want)
	require.False(t, errors.Is(err, kcp.ErrNoTLS))
}

// TestFingerprintsOfOpenssl runs the commands of the page: the key that they make serves,
// and they print what fingerprint returns.
func TestFingerprintsOfOpenssl(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("openssl is not installed")
	}
	page, err := os.ReadFile("recipes.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(page), "\n## A server known by its key\n")
	require.True(t, found)
	blocks := strings.Split(rest, "```")
	script := blocks[1]
	require.Contains(t, script, "openssl req")
	dir := t.TempDir()
	cmd := exec.Command("sh", "-e", "-c", script)
	cmd.Dir = dir
	out, err := cmd.Output()
	require.NoError(t, err)
	printed := strings.TrimSpace(string(out))
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "server.crt"), filepath.Join(dir, "server.key"))
	require.NoError(t, err)
	require.Equal(t, fingerprint(cert.Leaf), printed)
	conn, err := reconnectTo(t, &tls.Config{Certificates: []tls.Certificate{cert}}, pinned(printed))
	require.NoError(t, err)
	require.NoError(t, conn.Close())
}
