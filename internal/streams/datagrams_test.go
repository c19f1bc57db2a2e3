package streams

import (
	"strconv"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/stats"
)

// The constants of the package are the figures that RULES.md says.
func TestDatagramFigures(t *testing.T) {
	if strconv.IntSize == 64 {
		require.EqualValues(t, 2*unsafe.Sizeof([]byte{}), DatagramEntryBytes, "as append allocates twice as many")
	}
}

// At most 256 wait, the newest, and each is a copy.
func TestNewestWait(t *testing.T) {
	var q Datagrams
	b := make([]byte, 1)
	for i := range 300 {
		b[0] = byte(i)
		q.Add(b)
	}
	require.Equal(t, 256, q.Len())
	require.Equal(t, 256*(DatagramEntryBytes+1), q.Memory()-256*(cap(append(make([]byte, 0, 1), 0))-1))
	require.Equal(t, stats.Datagrams{Received: 300, Dropped: 44}, q.Stats)
	require.EqualValues(t, 300, q.Moved)
	for i := range 256 {
		require.Equal(t, []byte{byte(44 + i)}, q.Pop())
	}
	require.Zero(t, q.Len())
	require.Zero(t, q.Memory())
}

// What is dropped is counted, but for what nobody reads any more.
func TestDropped(t *testing.T) {
	var none *Datagrams
	require.Zero(t, none.Len())
	require.Zero(t, none.Memory())
	none.Shed()
	var q Datagrams
	q.Add([]byte("a"))
	q.Clear()
	require.Zero(t, q.Stats.Dropped)
	q.Add([]byte("b"))
	q.Shed()
	require.EqualValues(t, 1, q.Stats.Dropped)
	q.Refuse()
	require.Equal(t, stats.Datagrams{Received: 3, Dropped: 2}, q.Stats)
	q.Sent(5)
	require.EqualValues(t, 7, q.Moved, "payload, both ways")
	require.Zero(t, q.Memory())
}
