package protect

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"
)

// initials returns the keys of both ends of a handshake.
func initials(conv, nonce uint32) (dialler, listener *Initial) {
	return NewInitial(conv, nonce, true), NewInitial(conv, nonce, false)
}

// What one end seals the other opens: not itself, no other handshake, and nothing
// with a bit changed, wherever it is.
func TestInitial(t *testing.T) {
	dialler, listener := initials(1, 2)
	otherConv, _ := initials(2, 2)
	_, otherNonce := initials(1, 3)
	for _, size := range []int{0, 1, 100} {
		packet := append([]byte("in the clear"), make([]byte, size+InitialOverhead)...)
		at := len("in the clear")
		copy(packet[at:], bytes.Repeat([]byte{7}, size))
		want := bytes.Clone(packet[:at+size])
		dialler.Seal(packet, at)
		require.Equal(t, want[:at], packet[:at])
		got, err := listener.Open(bytes.Clone(packet), at)
		require.NoError(t, err)
		require.Equal(t, want, got)
		for _, other := range []*Initial{dialler, otherConv, otherNonce} {
			_, err := other.Open(bytes.Clone(packet), at)
			require.Equal(t, ErrForged, err)
		}
		for bit := range 8 * len(packet) {
			damaged := bytes.Clone(packet)
			damaged[bit/8] ^= 1 << (bit % 8)
			_, err := listener.Open(damaged, at)
			require.Equal(t, ErrForged, err)
		}
		for n := range len(packet) - at {
			_, err := listener.Open(bytes.Clone(packet[:at+n]), at)
			require.Equal(t, ErrForged, err)
		}
	}
}

// The example of WIRE.md §8.1.
func TestInitialFormat(t *testing.T) {
	_, listener := initials(0x04030201, 0x08070605)
	packet, err := hex.DecodeString("6b63703a" + "945fdcc416b495d9e27cd1d4" + "c0408abb6b" + "ec670f5d5a26162fbeb3e6d1b6230751")
	require.NoError(t, err)
	got, err := listener.Open(packet, 4)
	require.NoError(t, err)
	require.Equal(t, "kcp:hello", string(got))
	dialled, _ := initials(0x04030201, 0x08070605)
	_, err = dialled.Open(packet, 4)
	require.Equal(t, ErrForged, err)
}
