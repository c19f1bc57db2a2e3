package handshake

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

const testLimit = 4096

func TestStreamBounds(t *testing.T) {
	var s Stream
	data := make([]byte, 10)
	require.True(t, s.Receive(0, nil, testLimit, math.MaxInt))
	require.False(t, s.owes)
	require.False(t, s.Receive(testLimit-9, data, testLimit, math.MaxInt))
	require.False(t, s.Receive(math.MaxUint32, data, testLimit, math.MaxInt))
	require.False(t, s.Receive(math.MaxUint32, data, math.MaxInt32, math.MaxInt))
	require.True(t, s.Receive(testLimit-10, data, testLimit, math.MaxInt))
	require.Empty(t, s.in)
	for i := range uint32(maxAhead - 1) {
		require.True(t, s.Receive(20*i+5, data, testLimit, math.MaxInt))
	}
	require.False(t, s.Receive(2000, data, testLimit, math.MaxInt), "one gap too many")
	require.True(t, s.Receive(0, data, testLimit, math.MaxInt), "but it touches another")
	require.Len(t, s.Read(), 15)
	require.Nil(t, s.Read())
	require.EqualValues(t, 15, s.Received())
	require.True(t, s.owes)
	s.owes = false
	require.True(t, s.Receive(3, data, testLimit, math.MaxInt), "again")
	require.True(t, s.owes, "its acknowledgement was lost")

	require.True(t, s.Write(make([]byte, maxWritten)))
	require.False(t, s.Write(data))
	s.Acknowledge(1)
	require.EqualValues(t, 0, s.base, "what was not sent is not acknowledged")
	s.Sent(10)
	s.Acknowledge(11)
	require.EqualValues(t, 0, s.base)
	s.Rewind()
	s.Acknowledge(10)
	offset, _ := s.Peek(1)
	require.EqualValues(t, 10, offset)
	s.Acknowledge(5)
	require.EqualValues(t, 10, s.base)
}

// What a stream holds is in proportion to what has arrived, wherever that lies,
// and never more than it has room for. What is next in order always finds room.
func TestStreamHoldsWhatHasArrived(t *testing.T) {
	var s Stream
	require.True(t, s.Receive(testLimit-1, []byte{1}, testLimit, testLimit))
	require.LessOrEqual(t, s.held, 64)

	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 2))
		want := make([]byte, 1+random.IntN(testLimit))
		for i := range want {
			want[i] = byte(random.Uint32())
		}
		room := len(want) + len(want)/4 + 64 // the size class above
		var s Stream
		arrived, most := 0, 1+random.IntN(1200)
		for rounds := 0; len(s.in) < len(want); rounds++ {
			require.Less(t, rounds, 100_000, "seed %d", seed)
			from := random.IntN(len(want))
			if random.IntN(3) == 0 {
				from = int(s.Received())
			}
			to := min(len(want), from+1+random.IntN(most))
			ok := s.Receive(uint32(from), want[from:to], testLimit, room)
			require.True(t, ok || from > int(s.Received()), "seed %d: %d..%d of %d, room %d, received %d", seed, from, to, len(want), room, s.Received())
			arrived += to - from
			require.LessOrEqual(t, s.held, room, "seed %d", seed)
			require.LessOrEqual(t, s.held, 64+5*arrived/2+(pieceBytes+8)*len(s.ahead), "seed %d", seed)
		}
		require.Equal(t, want, s.Read(), "seed %d", seed)
		require.Zero(t, s.held, "seed %d", seed)
	}
}

// What would take more memory than there is room for is not taken.
func TestStreamHasNoRoom(t *testing.T) {
	var s Stream
	require.False(t, s.Receive(0, make([]byte, 100), testLimit, 99))
	require.Zero(t, s.Received())
	require.True(t, s.Receive(0, make([]byte, 100), testLimit, 1000))
	require.EqualValues(t, 100, s.Received())
}
