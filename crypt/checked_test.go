package crypt

//lint:file-ignore SA1019 The standard library's CFB is the model to compare with.

import (
	"bytes"
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
