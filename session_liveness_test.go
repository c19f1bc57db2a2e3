package kcp

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A peer without signals that was restarted, and answers as one that has never
// heard of the session, ends it; packets that were merely overtaken do not.
func TestRestartedLegacyPeer(t *testing.T) {
	inWorld(t, 22, clean, func(w *world) {
		e, _ := w.endpoint("10.0.0.2:5000", &Config{DialTimeout: -1})
		_, legacy := w.endpoint(serverAddr, nil) // stays silent: there is no listener
		w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool { return from != legacy.AddrPort() })
		c, err := e.Dial(context.Background(), legacy.LocalAddr())
		require.NoError(t, err)
		here := netip.MustParseAddrPort("10.0.0.2:5000")
		says := func(una seq) {
			b := make([]byte, headerSize)
			h := header{conv: c.Conv(), cmd: cmdWins, wnd: 128, una: una}
			h.encode(b)
			w.net.Inject(legacy.AddrPort(), here, b)
			time.Sleep(time.Second)
		}
		_, err = c.Write([]byte("x"))
		require.NoError(t, err)
		time.Sleep(time.Second)
		for range 4 {
			says(1)
		}
		for range 8 { // overtaken ones among the others
			says(0)
			says(1)
		}
		require.Equal(t, 1, e.Stats().Sessions)
		for range 5 {
			says(0)
		}
		require.Equal(t, 1, e.Stats().Sessions)
		says(0)
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, ErrReset)
		require.True(t, c.Peer().Legacy)
	})
}
