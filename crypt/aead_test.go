package crypt

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"testing"

	"github.com/stretchr/testify/require"
)

func newGCM(t *testing.T) *aead {
	t.Helper()
	c, err := AESGCM(numbered(16))
	require.NoError(t, err)
	return c.(*aead)
}

// The limit is per Cipher and holds to the packet; opening goes on.
func TestKeyExhaustion(t *testing.T) {
	c := newGCM(t)
	c.limit = 3
	last := seal(t, c, []byte("a"))
	seal(t, c, []byte("b"))
	require.Equal(t, uint64(1), Remaining(c))
	require.ErrorIs(t, c.Seal(make([]byte, 5)), ErrShort)
	require.Equal(t, uint64(1), Remaining(c), "a packet that is not sealed does not count")
	seal(t, c, []byte("c"))

	for range 3 {
		require.Zero(t, Remaining(c))
		packet := make([]byte, 40)
		require.ErrorIs(t, c.Seal(packet), ErrKeyExhausted)
		require.Equal(t, make([]byte, 40), packet)
	}
	got, err := c.Open(last)
	require.NoError(t, err)
	require.Equal(t, "a", string(got))
}

// The bound of NIST SP 800-38D holds for both ends together, and no size of
// nonce gets closer to a repetition.
func TestSealLimit(t *testing.T) {
	require.Equal(t, uint64(1)<<31, newGCM(t).limit)
	for n, want := range map[int]uint64{
		0: 1 << 31, 1: 1, 4: 1, 5: 1 << 3, 8: 1 << 15, 11: 1 << 27, 12: 1 << 31, 16: 1 << 31, 23: 1 << 31,
		24: unlimited, 32: unlimited,
	} {
		require.Equal(t, want, sealLimit(n), "%d bytes", n)
	}
	for _, m := range modes {
		if a, ok := m.withKey(t, 1).(*aead); ok {
			require.Equal(t, sealLimit(a.aead.NonceSize()), a.limit)
		}
	}
}

// An AEAD that draws its own nonce makes the same packets.
func TestAEADWithItsOwnNonce(t *testing.T) {
	block, err := aes.NewCipher(numbered(16))
	require.NoError(t, err)
	own, err := cipher.NewGCMWithRandomNonce(block)
	require.NoError(t, err)
	a, b := AEAD(own), newGCM(t)
	head, tail := a.Overhead()
	require.Equal(t, []int{0, 28}, []int{head, tail})
	require.Equal(t, uint64(1<<31), Remaining(a))
	require.ErrorIs(t, a.(NonceCipher).SealNonce(make([]byte, 100)), errNoNonce)

	for n := range 100 {
		got, err := b.Open(seal(t, a, numbered(n)))
		require.NoError(t, err)
		require.True(t, bytes.Equal(numbered(n), got))
		packet := seal(t, b, numbered(n))
		_, err = a.Open(bytes.Clone(packet[:n+27]))
		require.Error(t, err)
		got, err = a.Open(packet)
		require.NoError(t, err)
		require.True(t, bytes.Equal(numbered(n), got))
	}
}

// A moving AEAD returns memory of its own, which append allows.
type moving struct{ cipher.AEAD }

func (m moving) Seal(dst, nonce, plaintext, data []byte) []byte {
	return m.AEAD.Seal(bytes.Clone(dst), nonce, plaintext, data)
}

func (m moving) Open(dst, nonce, ciphertext, data []byte) ([]byte, error) {
	return m.AEAD.Open(nil, nonce, ciphertext, data)
}

// A lazy AEAD does not seal.
type lazy struct{ cipher.AEAD }

func (lazy) Seal(dst, _, plaintext, _ []byte) []byte { return append(dst, plaintext...) }

func TestForeignAEAD(t *testing.T) {
	gcm := newGCM(t)
	c := AEAD(moving{gcm.aead})
	packet := seal(t, c, []byte("hello"))
	require.NotContains(t, string(packet), "hello")
	got, err := gcm.Open(bytes.Clone(packet))
	require.NoError(t, err)
	require.Equal(t, "hello", string(got))
	got, err = c.Open(packet)
	require.NoError(t, err)
	require.Equal(t, "hello", string(got))
	require.Same(t, &packet[12], &got[0])

	require.ErrorIs(t, AEAD(lazy{gcm.aead}).Seal(make([]byte, 50)), errAEAD)
}

// A packet with a nonce of the caller's is one like any other, counts as such,
// and keeps the nonce where it is.
func TestSealNonce(t *testing.T) {
	for _, wrap := range []func(Cipher) Cipher{func(c Cipher) Cipher { return c }, Locked} {
		gcm := newGCM(t)
		gcm.limit = 1
		c := wrap(gcm).(NonceCipher)
		require.Equal(t, 12, c.NonceSize())
		packet := append([]byte("the nonce 12plain"), make([]byte, 16)...)
		require.NoError(t, c.SealNonce(packet))
		require.Equal(t, "the nonce 12", string(packet[:12]))
		require.NotEqual(t, "plain", string(packet[12:17]))
		got, err := c.Open(packet)
		require.NoError(t, err)
		require.Equal(t, "plain", string(got))
		require.Equal(t, "the nonce 12", string(packet[:12]))
		require.ErrorIs(t, c.SealNonce(packet), ErrKeyExhausted)
		require.ErrorIs(t, c.SealNonce(packet[:5]), ErrShort)
	}
	for _, c := range []Cipher{Locked(None()), None(), XOR(nil), Locked(struct{ Cipher }{None()})} {
		c := c.(NonceCipher)
		require.Zero(t, c.NonceSize(), "it hides nothing")
		require.ErrorIs(t, c.SealNonce(make([]byte, 100)), errNoNonce)
	}
	salsa, err := Salsa20(numbered(32))
	require.NoError(t, err)
	c := salsa.(NonceCipher)
	require.Equal(t, nonceSize, c.NonceSize())
	packet := append(append([]byte("the nonce of 16."), 0, 0, 0, 0), "plain"...)
	require.NoError(t, c.SealNonce(packet))
	got, err := salsa.Open(packet)
	require.NoError(t, err)
	require.Equal(t, "plain", string(got))
	require.Equal(t, "the nonce of 16.", string(packet[:nonceSize]))
	require.ErrorIs(t, c.SealNonce(packet[:headerSize-1]), ErrShort)
}

// A plaintext that is not in the packet is sealed as one that is, and stays as it
// is.
func TestSealFrom(t *testing.T) {
	for name, make_ := range map[string]func([]byte) (Cipher, error){
		"AES-GCM": AESGCM, "ChaCha20-Poly1305": ChaCha20Poly1305, "XChaCha20-Poly1305": XChaCha20Poly1305,
	} {
		t.Run(name, func(t *testing.T) {
			c, err := make_(numbered(32))
			require.NoError(t, err)
			s := c.(SealerFrom)
			head, tail := s.Overhead()
			plaintext := numbered(1400)
			packet, want := make([]byte, head+1400+tail), make([]byte, head+1400+tail)
			copy(packet, numbered(head))
			copy(want, numbered(head))
			copy(want[head:], plaintext)
			require.NoError(t, s.SealNonceFrom(packet, plaintext))
			require.NoError(t, s.SealNonce(want))
			require.Equal(t, want, packet)
			require.Equal(t, numbered(1400), plaintext)

			require.NoError(t, s.SealFrom(packet, plaintext))
			require.NotEqual(t, want[:head], packet[:head], "a nonce of its own")
			got, err := c.Open(packet)
			require.NoError(t, err)
			require.Equal(t, plaintext, got)
			require.ErrorIs(t, s.SealFrom(packet[1:], plaintext), ErrShort)
			require.ErrorIs(t, s.SealNonceFrom(packet, plaintext[1:]), ErrShort)
		})
	}
}
