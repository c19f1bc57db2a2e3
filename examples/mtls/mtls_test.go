package main

import (
	"crypto/tls"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
)

// Clients have the accounts of their certificates, and others have none.
func TestMutualTLS(t *testing.T) {
	ca, err := newAuthority()
	require.NoError(t, err)
	config, err := ca.serverConfig()
	require.NoError(t, err)
	l, err := kcp.Listen("udp", "127.0.0.1:0", config)
	require.NoError(t, err)
	defer l.Close()
	go (&bank{balances: make(map[string]int)}).serve(l)
	for _, test := range []struct{ name, want string }{
		{"alice", "alice has 10\nalice has 30\n"},
		{"bob", "bob has 10\nbob has 30\n"},
		{"alice", "alice has 40\nalice has 60\n"},
	} {
		config, err := ca.clientConfig(test.name)
		require.NoError(t, err)
		conn, err := kcp.Dial("udp", l.Addr().String(), config)
		require.NoError(t, err)
		require.Equal(t, protocol, conn.ConnectionState().TLS.NegotiatedProtocol)
		got, err := pay(conn, 10, 20)
		require.NoError(t, err)
		require.Equal(t, test.want, got)
	}

	other, err := newAuthority()
	require.NoError(t, err)
	config, err = other.clientConfig("alice")
	require.NoError(t, err)
	config.TLS.RootCAs = ca.pool()
	_, err = kcp.Dial("udp", l.Addr().String(), config)
	var alert tls.AlertError
	require.ErrorAs(t, err, &alert)
}
