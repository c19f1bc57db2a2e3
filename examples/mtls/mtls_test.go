package main

import (
	"crypto/tls"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
)

// Clients have the accounts of their certificates, and others have none.
func TestMutualTLS(t *testing.T) {
	ca, trusted, err := newAuthority()
	require.NoError(t, err)
	settings := func(by *tls.Certificate, name string) *kcp.Config {
		c, err := config(by, trusted, name)
		require.NoError(t, err)
		return c
	}
	l, err := kcp.Listen("udp", "127.0.0.1:0", settings(ca, serverName))
	require.NoError(t, err)
	defer l.Close()
	go (&bank{balances: make(map[string]int)}).serve(l)
	for _, test := range []struct{ name, want string }{
		{"alice", "alice has 10\nalice has 30\n"},
		{"bob", "bob has 10\nbob has 30\n"},
		{"alice", "alice has 40\nalice has 60\n"},
	} {
		conn, err := kcp.Dial("udp", l.Addr().String(), settings(ca, test.name))
		require.NoError(t, err)
		got, err := pay(conn, 10, 20)
		require.NoError(t, err)
		require.Equal(t, test.want, got)
	}

	other, _, err := newAuthority()
	require.NoError(t, err)
	eve := settings(other, "alice")
	eve.TLS.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return &eve.TLS.Certificates[0], nil
	}
	_, err = kcp.Dial("udp", l.Addr().String(), eve)
	var alert tls.AlertError
	require.ErrorAs(t, err, &alert)
}
