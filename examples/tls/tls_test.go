package main

import (
	"bytes"
	"crypto/tls"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/examples/internal/lab"
	"github.com/arqnet/kcp/internal/testenv"
)

func TestEcho(t *testing.T) {
	lab.Run(t, nil, func(t *testing.T, l net.Listener, dial lab.Dial) {
		config := testenv.TLS()
		go serve(tls.NewListener(l, config))
		for i := range uint64(3) {
			session, err := dial(t.Context())
			require.NoError(t, err)
			content := testenv.Content(i, 200_000)
			answer, err := exchange(session, config, content)
			require.NoError(t, err)
			require.True(t, bytes.Equal(content, answer))
		}
	})
}
