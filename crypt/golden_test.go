package crypt

//lint:file-ignore SA1019 kcp-go's ciphers are old, and these are their implementations.

import (
	"bufio"
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/des"
	"encoding/binary"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/blowfish"
	"golang.org/x/crypto/cast5"
	"golang.org/x/crypto/tea"
	"golang.org/x/crypto/twofish"
	"golang.org/x/crypto/xtea"
)

// A mode is one of kcp-go's ciphers, by the name that the golden packets use.
type mode struct {
	name    string
	keySize int
	block   func(key []byte) (cipher.Block, error) // nil if it is no block cipher
	cipher  func(key []byte) (Cipher, error)
	// unchecked are the bytes of a packet that may change without effect on the
	// plaintext: those of the nonce that no other byte depends on.
	unchecked [2]int
}

var modes = []mode{
	blockMode("aes-128", 16, aes.NewCipher),
	blockMode("aes-192", 24, aes.NewCipher),
	blockMode("aes-256", 32, aes.NewCipher),
	blockMode("3des", 24, des.NewTripleDESCipher),
	blockMode("blowfish", 32, func(k []byte) (cipher.Block, error) { return blowfish.NewCipher(k) }),
	blockMode("cast5", 16, func(k []byte) (cipher.Block, error) { return cast5.NewCipher(k) }),
	blockMode("tea", 16, func(k []byte) (cipher.Block, error) { return tea.NewCipherWithRounds(k, 16) }),
	blockMode("twofish", 32, func(k []byte) (cipher.Block, error) { return twofish.NewCipher(k) }),
	blockMode("xtea", 16, func(k []byte) (cipher.Block, error) { return xtea.NewCipher(k) }),
	{name: "salsa20", keySize: 32, cipher: Salsa20, unchecked: [2]int{8, 16}},
	{name: "xor", keySize: 32, cipher: func(k []byte) (Cipher, error) { return XOR(k), nil }, unchecked: [2]int{0, 16}},
	{name: "none", keySize: 32, cipher: func([]byte) (Cipher, error) { return None(), nil }, unchecked: [2]int{0, 16}},
	{name: "aes-128-gcm", keySize: 16, cipher: AESGCM},
	{name: "aes-192-gcm", keySize: 24, cipher: AESGCM},
	{name: "aes-256-gcm", keySize: 32, cipher: AESGCM},
	{name: "chacha20-poly1305", keySize: 32, cipher: ChaCha20Poly1305},
	{name: "xchacha20-poly1305", keySize: 32, cipher: XChaCha20Poly1305},
}

func blockMode(name string, keySize int, block func([]byte) (cipher.Block, error)) mode {
	m := mode{name: name, keySize: keySize, block: block}
	m.cipher = func(key []byte) (Cipher, error) {
		b, err := block(key)
		if err != nil {
			return nil, err
		}
		return CFB(b), nil
	}
	// Of the two blocks that a nonce fills if they have 8 bytes, the first
	// goes into the second and no further.
	if b, _ := block(make([]byte, keySize)); b.BlockSize() == 8 {
		m.unchecked = [2]int{0, 8}
	}
	return m
}

// withKey returns the cipher of m with a key made of b.
func (m mode) withKey(t testing.TB, b byte) Cipher {
	t.Helper()
	key := make([]byte, m.keySize)
	for i := range key {
		key[i] = b + byte(i*7)
	}
	c, err := m.cipher(key)
	require.NoError(t, err)
	return c
}

// seal seals a copy of plaintext.
func seal(t testing.TB, c Cipher, plaintext []byte) []byte {
	t.Helper()
	head, tail := c.Overhead()
	packet := make([]byte, head+len(plaintext)+tail)
	copy(packet[head:], plaintext)
	require.NoError(t, c.Seal(packet))
	return packet
}

// reseal seals packet, which holds nonce and plaintext in their places, without
// drawing a nonce.
func reseal(t testing.TB, c Cipher, packet []byte) {
	t.Helper()
	switch c := c.(type) {
	case *checked:
		c.seal(packet)
	case *aead:
		require.NoError(t, c.seal(packet, c.content(packet)))
	default:
		require.Fail(t, "unknown cipher")
	}
}

// numbered returns n different bytes.
func numbered(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*5 + i>>8)
	}
	return b
}

// A golden packet was made by kcp-go.
type golden struct {
	mode, origin                  string
	key, nonce, plaintext, packet []byte
}

func goldenPackets(t testing.TB) []golden {
	t.Helper()
	f, err := os.Open("testdata/kcp-go.txt")
	require.NoError(t, err)
	defer f.Close()
	var all []golden
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		field := strings.Fields(lines.Text())
		require.Len(t, field, 6)
		plaintext := unhex(t, strings.TrimPrefix(field[4], "-"))
		all = append(all, golden{field[0], field[1], unhex(t, field[2]), unhex(t, field[3]), plaintext, unhex(t, field[5])})
	}
	return all
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}

// Packets of kcp-go open, and with their nonce and content Seal makes the same
// packets, byte for byte.
func TestGoldenPackets(t *testing.T) {
	all := goldenPackets(t)
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			framed, captured := 0, 0
			for _, g := range all {
				if g.mode != m.name {
					continue
				}
				c, err := m.cipher(g.key)
				require.NoError(t, err)
				plaintext, err := c.Open(bytes.Clone(g.packet))
				require.NoError(t, err)
				require.Equal(t, g.plaintext, append([]byte{}, plaintext...))

				packet := make([]byte, len(g.packet))
				head, _ := c.Overhead()
				copy(packet, g.nonce)
				copy(packet[head:], g.plaintext)
				reseal(t, c, packet)
				require.Equal(t, g.packet, packet)

				if g.origin == "framed" {
					framed++
					continue
				}
				captured++
				require.Equal(t, uint32(0x11223344), binary.LittleEndian.Uint32(plaintext), "conv")
				require.Equal(t, "hello from a session with "+m.name, string(plaintext[24:]))
			}
			require.GreaterOrEqual(t, framed, 9)
			require.Equal(t, 1, captured)
		})
	}
}
