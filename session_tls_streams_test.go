package kcp

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// Streams work over TLS, over a bad path too.
func TestTLSStreams(t *testing.T) {
	for seed := range uint64(2) {
		inWorld(t, seed, lossy, func(w *world) {
			a, b, _, _ := w.movable(secured(Config{}))
			for i := range uint64(3) {
				x, err := a.OpenStream(context.Background(), nil)
				require.NoError(t, err)
				want := content(i, 50_000)
				send(t, x, want)
				y, err := b.AcceptStream(context.Background())
				require.NoError(t, err)
				receive(t, y, want)
				require.NoError(t, y.CloseWrite())
				_, err = x.Read(make([]byte, 1))
				require.Equal(t, io.EOF, err)
			}
		})
	}
}
