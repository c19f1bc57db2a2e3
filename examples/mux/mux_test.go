package main

import (
	"bytes"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/xtaci/smux"

	"github.com/arqnet/kcp/examples/internal/lab"
	"github.com/arqnet/kcp/internal/testenv"
)

func TestStreams(t *testing.T) {
	lab.RunInRealTime(t, nil, func(t *testing.T, l net.Listener, dial lab.Dial) {
		go serve(l)
		conn, err := dial(t.Context())
		require.NoError(t, err)
		session, err := smux.Client(conn, settings())
		require.NoError(t, err)
		var streams sync.WaitGroup
		for i := range uint64(10) {
			streams.Go(func() {
				for round := range uint64(3) {
					content := testenv.Content(i<<8|round, 30_000)
					answer, err := ask(session, content)
					assert.NoError(t, err)
					assert.True(t, bytes.Equal(content, answer))
				}
			})
		}
		streams.Wait()
		require.NoError(t, session.Close())
	})
}
