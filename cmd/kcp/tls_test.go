package main

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/identity"
	"github.com/stretchr/testify/require"
)

// writeTLS writes the files of a certificate for a host.
func writeTLS(t *testing.T, host string) (cert, key string) {
	t.Helper()
	c, err := identity.New(host)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	require.NoError(t, err)
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{
		cert: {Type: "CERTIFICATE", Bytes: c.Certificate[0]},
		key:  {Type: "PRIVATE KEY", Bytes: der},
	} {
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
	}
	return cert, key
}

// Sessions of listen and dial speak TLS. A client that does not trust the server,
// or that the server does not trust, is told so, and the listener goes on.
func TestTLS(t *testing.T) {
	cert, key := writeTLS(t, "test")
	client, clientKey := writeTLS(t, "client")
	p, addr := listen(t.Context(), t, strings.NewReader("answer"), "-k", "-tls-cert", cert, "-tls-key", key, "-ca", client)
	trusting := []string{"-tls", "-ca", cert, "-tls-name", "test"}

	bad := dial(t.Context(), strings.NewReader("x"), addr, "-tls", "-ca", client, "-tls-name", "test")
	require.Equal(t, 1, bad.wait(t))
	require.Contains(t, bad.err.String(), "unknown authority")
	p.err.Find(t, "bad (certificate)")

	anonymous := dial(t.Context(), strings.NewReader("x"), addr, trusting...)
	require.Equal(t, 1, anonymous.wait(t))
	require.Contains(t, anonymous.err.String(), "certificate required")

	plain := dial(t.Context(), strings.NewReader("x"), addr)
	require.Equal(t, 1, plain.wait(t))
	require.Contains(t, plain.err.String(), "wants TLS (-tls)")

	good := dial(t.Context(), strings.NewReader("question"), addr, append(trusting, "-tls-cert", client, "-tls-key", clientKey)...)
	require.Equal(t, 0, good.wait(t), good.err.String())
	require.Equal(t, "answer", good.out.String())
	p.out.Find(t, "(^question$)")
}

func TestTLSFlags(t *testing.T) {
	cert, key := writeTLS(t, "test")
	for _, f := range []tlsFlags{
		{cert: cert}, {key: key}, {ca: cert}, {protocol: "x"}, {cert: cert, key: cert},
		{cert: cert, key: key, ca: key}, {cert: cert, key: key, ca: "/nonexistent"},
	} {
		require.Error(t, f.applyListen(new(kcp.Config)), "%+v", f)
	}
	for _, f := range []tlsFlags{{ca: cert}, {name: "x"}, {on: true, cert: cert}} {
		require.Error(t, f.applyDial(new(kcp.Config)), "%+v", f)
	}
	require.Error(t, (&tlsFlags{on: true}).applyDial(&kcp.Config{LegacyPeers: kcp.LegacyAllow}))
	require.Error(t, (&tlsFlags{on: true}).applyDial(&kcp.Config{MTU: 600}))
	c := new(kcp.Config)
	require.NoError(t, (&tlsFlags{}).applyListen(c))
	require.NoError(t, (&tlsFlags{}).applyDial(c))
	require.Nil(t, c.TLS)
	require.NoError(t, (&tlsFlags{cert: cert, key: key, ca: cert, protocol: "x"}).applyListen(c))
	require.NotNil(t, c.TLS.ClientCAs)
	require.Nil(t, c.TLS.RootCAs)
	require.NoError(t, (&tlsFlags{on: true, name: "x"}).applyDial(c))
	require.Equal(t, "x", c.TLS.ServerName)
}
