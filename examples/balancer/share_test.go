package balancer

import (
	"encoding/binary"
	"net"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// conversations is how many ids TestShares sends.
const conversations = 2000

// A server that is added takes its share of the conversations from the others, and
// nothing else moves. When it is taken away, all are where they were.
func TestShares(t *testing.T) {
	needNginx(t)
	var names []string
	for range 4 {
		names = append(names, nameServer(t))
	}
	n := startNginx(t, names[:3])
	before := places(t, n)
	n.reload(names)
	moved := 0
	for i, place := range places(t, n) {
		if place != before[i] {
			require.Equal(t, names[3], place)
			moved++
		}
	}
	t.Logf("a fourth server takes %d of %d conversations", moved, conversations)
	require.InDelta(t, conversations/4, moved, conversations/12)
	n.reload(names[:3])
	require.True(t, slices.Equal(before, places(t, n)), "a conversation has not come back")
}

// nameServer starts a UDP server that answers with its address, and returns that.
func nameServer(t *testing.T) string {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	name := c.LocalAddr().String()
	go func() {
		for b := make([]byte, 1500); ; {
			_, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = c.WriteTo([]byte(name), from)
		}
	}()
	return name
}

// places returns which server gets each conversation. Each has a port of its own, as
// nginx remembers where packets of a port go.
func places(t *testing.T, n *nginx) (names []string) {
	t.Helper()
	hello := segment(83, "")
	var sockets []net.Conn
	for i := range uint32(conversations) {
		binary.LittleEndian.PutUint32(hello, i*2654435761) // far from each other
		c := dialled(t, n)
		_, err := c.Write(hello)
		require.NoError(t, err)
		names = append(names, answer(t, c))
		sockets = append(sockets, c)
	}
	for _, c := range sockets {
		require.NoError(t, c.Close())
	}
	return names
}
