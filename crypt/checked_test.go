package crypt

//lint:file-ignore SA1019 The standard library's CFB is the model to compare with.

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"hash/crc32"
	"testing"

	"github.com/stretchr/testify/require"
)

// Packets of every length are the standard library's CFB of nonce, CRC and
// plaintext.
func TestCFBIsThatOfTheStandardLibrary(t *testing.T) {
	for _, m := range modes {
		if m.block == nil {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			block, err := m.block(numbered(m.keySize))
			require.NoError(t, err)
			c := CFB(block)
			iv := []byte{167, 115, 79, 156, 18, 172, 27, 1, 164, 21, 242, 193, 252, 120, 230, 107}
			for n := range 600 {
				packet := seal(t, c, numbered(n))
				clear := make([]byte, len(packet))
				cipher.NewCFBDecrypter(block, iv[:block.BlockSize()]).XORKeyStream(clear, packet)
				require.True(t, bytes.Equal(numbered(n), clear[20:]))
				require.Equal(t, crc32.ChecksumIEEE(numbered(n)), binary.LittleEndian.Uint32(clear[16:]))

				cipher.NewCFBEncrypter(block, iv[:block.BlockSize()]).XORKeyStream(clear, clear)
				require.Equal(t, packet, clear)
				_, err := c.Open(clear)
				require.NoError(t, err)
			}
		})
	}
}

type oddBlock struct{ cipher.Block }

func (oddBlock) BlockSize() int { return 32 }

func TestCFBRefusesOtherBlockSizes(t *testing.T) {
	require.PanicsWithValue(t, "crypt: CFB: nil cipher.Block", func() { CFB(nil) })
	require.PanicsWithValue(t, "crypt: AEAD: nil cipher.AEAD", func() { AEAD(nil) })
	require.PanicsWithValue(t, "crypt: Locked: nil Cipher", func() { Locked(nil) })
	require.PanicsWithValue(t, "crypt: CFB needs a cipher with blocks of 8 or 16 bytes, not 32", func() { CFB(oddBlock{}) })
}

// What the documentation says of CFB: who knows neither key nor content can
// change the last block so that the CRC remains right.
func TestCFBDoesNotAuthenticate(t *testing.T) {
	block, err := aes.NewCipher(numbered(16))
	require.NoError(t, err)
	c := CFB(block)
	plaintext := numbered(4*16 - headerSize) // ends with a whole block
	packet := seal(t, c, plaintext)

	flip := binary.LittleEndian.AppendUint32([]byte{0x41}, crcOfFlip([]byte{0x41}))
	at := len(packet) - len(flip)
	for i, b := range flip {
		packet[at+i] ^= b
		plaintext[at-headerSize+i] ^= b
	}
	got, err := c.Open(packet)
	require.NoError(t, err)
	require.Equal(t, plaintext, got)
}

// With the stream ciphers any bits can be flipped, and the CRC set right.
func TestStreamsDoNotAuthenticate(t *testing.T) {
	for _, m := range modes[9:12] {
		t.Run(m.name, func(t *testing.T) {
			c := m.withKey(t, 1)
			packet := seal(t, c, []byte("pay 10 to bob, at once"))
			flip := make([]byte, len(packet)-headerSize)
			flip[4] = '1' ^ '9'
			for i, b := range binary.LittleEndian.AppendUint32(nil, crcOfFlip(flip)) {
				packet[nonceSize+i] ^= b
			}
			packet[headerSize+4] ^= flip[4]
			got, err := c.Open(packet)
			require.NoError(t, err)
			require.Equal(t, "pay 90 to bob, at once", string(got))
		})
	}
}

// crcOfFlip returns how a CRC-32 changes when these bits are flipped.
func crcOfFlip(flip []byte) uint32 {
	return crc32.ChecksumIEEE(flip) ^ crc32.ChecksumIEEE(make([]byte, len(flip)))
}

// kcp-go's table for XOR has 1500 bytes; what is behind stays as it is.
func TestXORBeyondItsTable(t *testing.T) {
	packet := seal(t, XOR([]byte("key")), make([]byte, 1600-headerSize))
	require.Equal(t, make([]byte, 100), packet[1500:])
	require.NotContains(t, string(packet[nonceSize:1500]), string(make([]byte, 8)))
}

// A key of no bytes is a key: that of everybody who has none.
func TestXORWithoutAKey(t *testing.T) {
	packet := seal(t, XOR(nil), []byte("hello"))
	require.NotContains(t, string(packet), "hello")
	_, err := XOR([]byte("key")).Open(bytes.Clone(packet))
	require.Error(t, err)
	content, err := XOR([]byte{}).Open(packet)
	require.NoError(t, err)
	require.Equal(t, "hello", string(content))
}

func TestNoneIsClear(t *testing.T) {
	packet := seal(t, None(), []byte("hello"))
	require.Equal(t, "hello", string(packet[headerSize:]))
	require.Equal(t, crc32.ChecksumIEEE([]byte("hello")), binary.LittleEndian.Uint32(packet[nonceSize:]))
}

// The first 8 bytes of salsa20's packets are its nonce, in the clear, so that
// two packets with the same ones have the same key stream.
func TestSalsa20Nonce(t *testing.T) {
	c := modes[9].withKey(t, 1).(*checked)
	a, b := numbered(100), numbered(100)
	b[50] ^= 0x80
	c.encrypt(a)
	c.encrypt(b)
	require.Equal(t, numbered(8), a[:8])
	b[50] ^= 0x80
	require.Equal(t, a, b)
	b[3]++
	c.decrypt(b)
	require.NotEqual(t, numbered(100)[8:], b[8:])
}
