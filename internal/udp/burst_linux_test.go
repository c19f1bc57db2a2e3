package udp

import (
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/neterr"
	"github.com/stretchr/testify/require"
)

// What has arrived is read in order without waiting, also the rest of a merged packet,
// and what arrives later is left to ReadBatch.
func TestReadArrived(t *testing.T) {
	from, r := listen(t, "udp4", "127.0.0.1:0"), listen(t, "udp4", "127.0.0.1:0")
	sender, receiver := newFastConn(t, from), newFastConn(t, r)
	batch := make([]Datagram, 4)
	sizes := func(n int) (all []int) {
		for _, d := range batch[:n] {
			all = append(all, len(d.Buf))
		}
		return all
	}
	require.Zero(t, receiver.readArrived(batch))
	none, err := receiver.ReadBatch(nil) // which waits for nothing
	require.NoError(t, err)
	require.Zero(t, none)
	for range 20 {
		require.Empty(t, writeAll(sender, to(addrOf(r), append(times(5, 300), 7)...)))
		n, err := receiver.ReadBatch(batch)
		require.NoError(t, err)
		got := sizes(n)
		for len(got) < 6 { // on loopback all has arrived when it was written
			n := receiver.readArrived(batch)
			require.Positive(t, n)
			got = append(got, sizes(n)...)
		}
		require.Equal(t, []int{300, 300, 300, 300, 300, 7}, got)
		require.Zero(t, receiver.readArrived(batch))
	}
	require.Zero(t, testing.AllocsPerRun(100, func() { receiver.readArrived(batch) }))
	require.NoError(t, r.Close())
	require.Zero(t, receiver.readArrived(batch))
	_, err = receiver.ReadBatch(batch)
	require.ErrorIs(t, err, net.ErrClosed)
}

// An error of the socket is left to the next ReadBatch, once.
func TestReadArrivedLeavesErrors(t *testing.T) {
	gone := listen(t, "udp4", "127.0.0.1:0")
	pc, err := net.DialUDP("udp4", nil, gone.LocalAddr().(*net.UDPAddr))
	require.NoError(t, err)
	defer pc.Close()
	require.NoError(t, gone.Close())
	c, batch := newFastConn(t, pc), make([]Datagram, 4)
	_, err = pc.Write([]byte("x")) // the answer is there when it returns
	require.NoError(t, err)
	require.Zero(t, c.readArrived(batch))
	_, err = c.ReadBatch(batch)
	require.True(t, neterr.Is(err, syscall.ECONNREFUSED), "%v", err)
	require.NoError(t, pc.SetReadDeadline(time.Now().Add(-time.Second)))
	_, err = c.ReadBatch(batch)
	require.False(t, neterr.Is(err, syscall.ECONNREFUSED), "%v", err)
}
