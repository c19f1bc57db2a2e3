package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/examples/internal/lab"
)

func TestEcho(t *testing.T) {
	lab.Run(t, nil, func(t *testing.T, l net.Listener, dial lab.Dial) {
		server, client, err := newIdentity()
		require.NoError(t, err)
		go serve(tls.NewListener(l, server))
		for i := range uint64(3) {
			session, err := dial(t.Context())
			require.NoError(t, err)
			content := lab.Content(i, 200_000)
			answer, err := exchange(session, client, content)
			require.NoError(t, err)
			require.True(t, bytes.Equal(content, answer))
		}
	})
}

func TestUnknownCertificatesAreNotTrusted(t *testing.T) {
	log.SetOutput(io.Discard) // the server's complaints
	defer log.SetOutput(os.Stderr)
	lab.Run(t, nil, func(t *testing.T, l net.Listener, dial lab.Dial) {
		server, _, err := newIdentity()
		require.NoError(t, err)
		_, client, err := newIdentity()
		require.NoError(t, err)
		go serve(tls.NewListener(l, server))
		session, err := dial(t.Context())
		require.NoError(t, err)
		_, err = exchange(session, client, []byte("secret"))
		var unknown x509.UnknownAuthorityError
		require.ErrorAs(t, err, &unknown)
	})
}
