package udp

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// A Detached goes on writing once the socket that it was made of is closed, also what
// GSO sends in one packet, until it is closed itself.
func TestDetached(t *testing.T) {
	eachCombination(t, func(t *testing.T, features Features) {
		from, to := listen(t, "udp4", "127.0.0.1:0"), listen(t, "udp4", "127.0.0.1:0")
		c := newConn(from, features)
		pc, w := Detach(c)
		if !features.Mmsg {
			require.Nil(t, pc)
			return
		}
		require.NoError(t, from.Close())
		require.Equal(t, from.LocalAddr(), pc.LocalAddr())
		require.True(t, w.KeepsWhole())
		require.Equal(t, features.GSO, w.Features().GSO)
		var batch []Datagram
		for i := range 5 {
			batch = append(batch, Datagram{Buf: []byte{byte(i), 1}, Addr: addrOf(to)})
		}
		n, err := w.WriteBatch(batch)
		require.NoError(t, err)
		require.Equal(t, 5, n)
		require.Empty(t, writeAll(w, []Datagram{{Buf: []byte{5, 1}, Addr: addrOf(to), Cut: true}}))
		for i := range 6 {
			b := make([]byte, 10)
			n, from, err := to.ReadFrom(b)
			require.NoError(t, err)
			require.Equal(t, []byte{byte(i), 1}, b[:n])
			require.Equal(t, pc.LocalAddr().String(), from.String())
		}
		require.NoError(t, pc.Close())
		_, err = w.WriteBatch(batch)
		require.ErrorIs(t, err, net.ErrClosed)
		require.ErrorIs(t, pc.Close(), net.ErrClosed)
	})
}

// HasReceived tells of what a packet of GRO has had more than the batch has space for.
func TestHasReceived(t *testing.T) {
	eachCombination(t, func(t *testing.T, features Features) {
		from, to := New(listen(t, "udp4", "127.0.0.1:0")), listen(t, "udp4", "127.0.0.1:0")
		c := newConn(to, features)
		require.False(t, HasReceived(c))
		batch := []Datagram{{Buf: []byte{1}, Addr: addrOf(to)}, {Buf: []byte{2}, Addr: addrOf(to)}}
		_, err := from.WriteBatch(batch)
		require.NoError(t, err)
		got := make([]Datagram, 1)
		for i := range batch {
			n, err := c.ReadBatch(got)
			require.NoError(t, err)
			require.Equal(t, 1, n)
			require.Equal(t, []byte{byte(i + 1)}, got[0].Buf)
			merged := features.GRO && from.Features().GSO
			require.Equal(t, merged && i == 0, HasReceived(c))
		}
	})
}
