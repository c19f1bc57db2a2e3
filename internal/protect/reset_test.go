package protect

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"
)

// A reset opens under its key if it was made after the given second, on a clock
// that wraps; nothing else does. It looks like a packet.
func TestReset(t *testing.T) {
	k := NewResetKey([]byte("secret"), []byte("session"))
	for size := MinReset; size <= MaxReset; size++ {
		for _, now := range []uint32{0, 1, 1 << 31, 1<<32 - 1} {
			packet := make([]byte, size)
			k.Reset(rand.Reader, packet, testConv, now)
			require.Equal(t, Application, LevelOf(packet))
			require.Equal(t, "01020304", hex.EncodeToString(packet[:4]))
			require.True(t, k.Opens(packet, now-1))
			require.True(t, k.Opens(packet, now-1<<31+1))
			require.False(t, k.Opens(packet, now), "made when the key was told")
			require.False(t, k.Opens(packet, now+1))
			require.False(t, k.Opens(packet[:size-1], now-1))
			require.False(t, k.Opens(append(bytes.Clone(packet), 0), now-1))
			for bit := range 8 * size {
				packet[bit/8] ^= 1 << (bit % 8)
				require.False(t, k.Opens(packet, now-1), "bit %d", bit)
				packet[bit/8] ^= 1 << (bit % 8)
			}
			for _, other := range []ResetKey{
				NewResetKey([]byte("other"), []byte("session")), NewResetKey([]byte("secret"), []byte("other")), {},
			} {
				require.False(t, other.Opens(packet, now-1))
			}
		}
	}
	for size := range 2 * MaxReset {
		require.False(t, k.Opens(make([]byte, size), 0))
	}
}

// The reset of a known key is that of WIRE.md §8.6, and no two are alike.
func TestResetFormat(t *testing.T) {
	k := ResetKey{Key: [ResetKeySize]byte(bytes.Repeat([]byte{1}, ResetKeySize)), Mask: 0x0a0b0c0d}
	packet, err := hex.DecodeString("01020304a20dde4261000102030405060708090a0b0c0d0e0f" +
		"2c52abda4d7d08f29da76396b4dff5a7")
	require.NoError(t, err)
	require.True(t, k.Opens(packet, 1_799_999_999))
	require.False(t, k.Opens(packet, 1_800_000_000))
	seen := make(map[string]bool)
	for range 100 {
		k.Reset(rand.Reader, packet, testConv, 1_800_000_000)
		require.False(t, seen[string(packet)])
		seen[string(packet)] = true
	}
}

// A peer's key counts once it was told, for resets made later, and another takes its
// place.
func TestToldKeys(t *testing.T) {
	var told ToldKeys
	k, other := NewResetKey([]byte("secret"), []byte("session")), NewResetKey([]byte("secret"), []byte("other"))
	reset := func(k ResetKey, at uint32) []byte {
		packet := make([]byte, MinReset)
		k.Reset(rand.Reader, packet, testConv, at)
		return packet
	}
	require.False(t, told.By(reset(k, 10)))
	told.Theirs.Store(&ToldKey{k, 9})
	require.True(t, told.By(reset(k, 10)))
	require.False(t, told.By(reset(k, 9)))
	require.False(t, told.By(reset(other, 10)))
	told.Theirs.Store(&ToldKey{other, 10})
	require.True(t, told.By(reset(other, 11)))
	require.False(t, told.By(reset(k, 11)))
}
