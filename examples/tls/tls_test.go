package main

import (
	"bytes"
	"crypto/tls"
	"net"
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
