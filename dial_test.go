package kcp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// KeepAlive follows a short PeerTimeout, so that a vanished peer is noticed in
// two and a half times that.
func TestKeepAliveFollowsPeerTimeout(t *testing.T) {
	for _, c := range []struct{ set, timeout, want time.Duration }{
		{0, 0, 25 * time.Second},
		{0, 3 * time.Second, 1500 * time.Millisecond},
		{0, 30 * time.Second, 25 * time.Second},
		{0, 10 * time.Millisecond, minKeepAlive},
		{0, -1, 25 * time.Second},
		{7 * time.Second, 3 * time.Second, 7 * time.Second},
		{-1, 3 * time.Second, 0},
	} {
		d := (&Config{KeepAlive: c.set, PeerTimeout: c.timeout}).withDefaults()
		require.Equal(t, c.want, d.KeepAlive, "%+v", c)
	}
	inWorld(t, 2, clean, func(w *world) {
		a, _, _ := w.pair(&Config{PeerTimeout: 3 * time.Second}, nil)
		w.deaf()
		start := time.Now()
		_, err := a.Read(make([]byte, 1))
		require.ErrorAs(t, err, new(*PeerLostError))
		require.Less(t, time.Since(start), 5*time.Second)
	})
}
