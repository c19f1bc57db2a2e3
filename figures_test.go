package kcp

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Figures of rules, as RULES.md has them: these tests spell the figures, and do not
// use the constants.

// An unvalidated legacy peer gets no ACK for 250 ms before it has sent 200 bytes, and
// none while data is in flight.
func TestHeldAcks(t *testing.T) {
	for sent := 196; sent <= 204; sent += 4 {
		h := newHarness(t, nil)
		h.k.limitUnvalidated(0, true)
		h.k.validation().Received(sent)
		for _, ms := range []uint32{0, 249, 1, 1} {
			h.advance(ms)
			require.Equal(t, sent < 200 && h.now-1000 < 250, h.k.holdsAcks(), "%d bytes, %d ms", sent, h.now-1000)
		}
		h.k.snd.inFlight = 1
		require.Equal(t, sent < 200, h.k.holdsAcks())
	}
}

// A session whose first packet was forged is forgotten after 10 seconds.
func TestHalfOpenSessionsLastTenSeconds(t *testing.T) {
	inWorld(t, 3, clean, func(t *testing.T, w *world) {
		l := w.listen(&Config{KeepAlive: -1})
		hello := packetOf(77, segment(cmdWask, uint8(sigHello), 12345, 0, 0, ""))
		w.net.Inject(netip.MustParseAddrPort("10.9.9.9:9"), netip.MustParseAddrPort(serverAddr), hello)
		time.Sleep(9900 * time.Millisecond)
		open := l.Stats().HalfOpen
		time.Sleep(300 * time.Millisecond)
		require.Equal(t, 1, open)
		require.Zero(t, l.Stats().HalfOpen)
	})
}

// A second plain window update shows a dialled session that its peer is a legacy one.
// The first does not.
func TestTwoWindowUpdatesShowALegacyPeer(t *testing.T) {
	for updates := range 4 {
		inWorld(t, 3, clean, func(t *testing.T, w *world) {
			pc, err := w.net.Listen(serverAddr)
			require.NoError(t, err)
			defer pc.Close()
			e, _ := w.endpoint("10.0.0.2:5000", &Config{DialTimeout: -1})
			c := w.dial(e)
			time.Sleep(100 * time.Millisecond) // before the second HELLO
			for range updates {
				w.net.Inject(netip.MustParseAddrPort(serverAddr), netip.MustParseAddrPort("10.0.0.2:5000"), packetOf(c.Conv(), segment(cmdWins, 0, 0, 0, 0, "")))
				time.Sleep(20 * time.Millisecond)
			}
			require.Equal(t, updates >= 2, c.Peer().Legacy, "after %d", updates)
			require.NoError(t, c.Abort())
		})
	}
}
