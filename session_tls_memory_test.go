package kcp

import (
	"encoding/binary"
	"testing"

	"github.com/arqnet/kcp/internal/udp"
	"github.com/stretchr/testify/require"
)

// Forged packets of a session in TIME-WAIT cost no derivation of keys each.
func TestTLSForgedInTimeWait(t *testing.T) {
	inWorld(t, 0, clean, func(w *world) {
		a, b, l := w.pair(secured(Config{}), secured(Config{}))
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		w.settle()
		e := l.Endpoint()
		key, now := b.path.key, e.now()
		packet := make([]byte, 200)
		d := &udp.Datagram{Addr: key.addr}
		for phase := range byte(2) {
			allocations := testing.AllocsPerRun(100, func() {
				clear(packet)
				binary.LittleEndian.PutUint32(packet, key.conv)
				packet[4] = 0xa2 + phase
				d.Buf = packet
				require.True(t, e.sealedInTimeWait(key, d, &inPacket{data: packet, conv: key.conv}, now))
			})
			require.LessOrEqual(t, allocations, 1.0)
		}
	})
}
