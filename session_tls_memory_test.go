package kcp

import (
	"context"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/packetkeys"
	"github.com/arqnet/kcp/internal/udp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// only returns the one session of e.
func (e *Endpoint) only(t *testing.T) *Conn {
	e.mu.RLock()
	defer e.mu.RUnlock()
	require.Len(t, e.table.sessions, 1)
	for _, c := range e.table.sessions {
		return c
	}
	return nil
}

// A dialled session keeps nothing under the application keys that comes before
// its TLS is done, although the peer has those keys: no server sends that, and
// only the reader of the socket may take datagrams for a handler.
func TestTLSApplicationDataBeforeFinished(t *testing.T) {
	inWorld(t, 0, clean, func(w *world) {
		l := w.listen(secured(Config{}))
		var server *Conn
		forged, finished := 0, false
		w.net.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
			if finished = finished || from.String() != serverAddr && p[4] == 0xa1; finished || p[4] != 0xa1 {
				return true
			}
			if server == nil {
				server = l.Endpoint().only(t)
			}
			b := make([]byte, packetkeys.Overhead+datagramHeader+3)
			content := b[packetkeys.HeaderSize:]
			binary.LittleEndian.PutUint16(content[4:], fec.TypeOOB)
			binary.LittleEndian.PutUint16(content[6:], datagramHeader+3-6)
			binary.LittleEndian.PutUint32(content[8:], server.Conv())
			if assert.NoError(t, server.in.numbers.tls.keys.Seal(b)) {
				forged++
				w.net.Inject(from, to, b)
			}
			return true
		})
		e, _ := w.endpoint("10.0.0.2:0", secured(Config{}))
		a, err := e.DialWith(context.Background(), l.Addr(), DialOptions{Quiet: true})
		require.NoError(t, err)
		handled := 0
		a.HandleDatagrams(func([]byte) { handled++ })
		_, err = a.Write([]byte("x"))
		require.NoError(t, err)
		receive(t, accepted(t, l), []byte("x"))
		w.settle()
		require.Positive(t, forged)
		require.Zero(t, handled)
		require.EqualValues(t, forged, e.Stats().DropHandshake)
	})
}

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
