package kcp

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// signalsOf returns the signals of a packet.
func signalsOf(p []byte) (all []signal) {
	for len(p) >= headerSize {
		h := decodeHeader(p)
		if s, ok := h.signal(); ok {
			all = append(all, s)
		}
		p = p[headerSize+int(h.len):]
	}
	return all
}

// A bad packet that begins with a signal from outside says nothing of the good
// one that comes after it.
func TestGoodPacketAfterABadOne(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		a, b, _ := w.pair(&Config{KeepAlive: -1}, &Config{KeepAlive: -1})
		time.Sleep(time.Minute)
		from, to := b.LocalAddr().(*net.UDPAddr).AddrPort(), a.LocalAddr().(*net.UDPAddr).AddrPort()
		outside, bad := make([]byte, headerSize), make([]byte, headerSize)
		signal{sigReset, 1, 2}.encode(header{conv: a.Conv()}, outside)
		h := header{conv: a.Conv(), cmd: cmdWins, una: 1000} // acknowledges what was never sent
		h.encode(bad)
		w.net.Inject(from, to, append(outside, bad...))
		_, err := b.Write([]byte("good"))
		require.NoError(t, err)
		time.Sleep(time.Second)
		synctest.Wait()
		a.mu.Lock()
		defer a.mu.Unlock()
		require.EqualValues(t, 1, a.rare.dropped.Una)
		require.Greater(t, a.live.lastHeard, time.Minute)
	})
}
