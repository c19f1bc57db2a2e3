package identity

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A fingerprint is the SHA-256 of the key, and a pin wants one of those given.
func TestPin(t *testing.T) {
	pair, err := New("test")
	require.NoError(t, err)
	cert := pair.Leaf
	mine, other := Fingerprint(cert), "SHA256:"+strings.Repeat("A", 43)
	require.NoError(t, Check(mine))
	require.NoError(t, Check(other))
	for _, bad := range []string{"", mine[7:], mine + "=", mine[:49], "MD5:" + mine[7:]} {
		require.ErrorContains(t, Check(bad), "43 characters")
	}
	state := tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}
	for _, c := range []*tls.Config{{}, {RootCAs: Pool(pair)}} {
		Pin(c, other, mine)
		require.Equal(t, c.RootCAs == nil, c.InsecureSkipVerify)
		require.Equal(t, tls.RequireAnyClientCert, c.ClientAuth)
		require.NoError(t, c.VerifyConnection(state))
		require.Error(t, c.VerifyConnection(tls.ConnectionState{}))
		Pin(c, other)
		require.Equal(t, &FingerprintError{mine, []string{other}}, c.VerifyConnection(state))
	}
	require.Equal(t, "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU", Fingerprint(new(x509.Certificate)), "of nothing")
}

// A key stays in its file, readable by nobody else. What follows from it alone is the same
// for each process, and differs for each service.
func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "server.pem")
	first, err := Load(path, "one")
	require.NoError(t, err)
	second, err := Load(path, "two")
	require.NoError(t, err)
	require.Equal(t, Fingerprint(first.Leaf), Fingerprint(second.Leaf))
	require.Equal(t, []string{"two"}, second.Leaf.DNSNames)
	require.Len(t, ResetKey(first, "a"), 32)
	require.Equal(t, ResetKey(first, "a"), ResetKey(second, "a"))
	require.NotEqual(t, ResetKey(first, "a"), ResetKey(first, "b"))
	require.Nil(t, ResetKey(tls.Certificate{PrivateKey: "in hardware"}, "a"))
	files, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, files, 1)
	info, err := files[0].Info()
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.NoError(t, os.WriteFile(path, []byte("x"), 0o600))
	_, err = Load(path, "one")
	require.ErrorContains(t, err, path)
}

func TestFiles(t *testing.T) {
	pair, err := New("test")
	require.NoError(t, err)
	dir := t.TempDir()
	cert, empty := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "empty.pem")
	require.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}), 0o600))
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	_, err = LoadCAs(cert)
	require.NoError(t, err)
	_, err = LoadCAs(empty)
	require.ErrorContains(t, err, "no certificate in PEM")
	_, err = LoadCAs(filepath.Join(dir, "missing"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = LoadPair(cert, empty)
	require.ErrorContains(t, err, "with key "+empty)
}
