package udp

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// arriving is a Conn at which batches of so many datagrams have arrived.
type arriving struct {
	Conn
	batches []int
}

func (a *arriving) readArrived([]Datagram) (n int) {
	if len(a.batches) > 0 {
		n, a.batches = a.batches[0], a.batches[1:]
	}
	return n
}

// A burst goes on while large batches arrive, up to 512 KiB. Nothing is read that is not
// returned.
func TestBurst(t *testing.T) {
	var b Burst
	c := &arriving{batches: []int{64, 64, 64}}
	require.Positive(t, b.More(c, nil, burstMost/2))
	require.Zero(t, b.More(c, nil, burstMost/2))
	require.Len(t, c.batches, 2)
	for range 2 {
		require.Positive(t, b.More(c, nil, burstMost/4), "the next one is as long")
	}
	require.Zero(t, b.More(c, nil, burstMost/4), "nothing has arrived")
	require.Zero(t, b)
	require.Zero(t, b.More(c.Conn, nil, BurstLeast), "it cannot tell")
}
