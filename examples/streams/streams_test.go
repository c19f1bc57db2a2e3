package main

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/netsim"
)

// All flows get through a bad network, and none waits for the download.
func TestStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := netsim.NewNetwork(1, netsim.LinkConfig{
			Delay: 40 * time.Millisecond, Loss: 0.05, Rate: 2_500_000, Queue: 250_000,
		})
		asset := bytes.Repeat([]byte("asset "), 300_000)
		r, err := play(t.Context(), n, asset, 120)
		require.NoError(t, err)
		require.Greater(t, r.states, 100)
		require.Less(t, r.chat, 500*time.Millisecond)
		require.True(t, bytes.Equal(asset, r.asset))
		time.Sleep(2 * time.Minute)
	})
}
