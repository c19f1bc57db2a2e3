package crypt

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/stretchr/testify/require"
)

// forEachMode runs f in a subtest for every cipher.
func forEachMode(t *testing.T, f func(t *testing.T, m mode, c Cipher)) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) { f(t, m, m.withKey(t, 1)) })
	}
}

func TestShortPackets(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode, c Cipher) {
		head, tail := c.Overhead()
		for n := range head + tail {
			require.ErrorIs(t, c.Seal(make([]byte, n)), ErrShort)
			_, err := c.Open(make([]byte, n))
			require.ErrorIs(t, err, ErrShort)
		}
		require.ErrorIs(t, c.Seal(nil), ErrShort)
		_, err := c.Open(nil)
		require.ErrorIs(t, err, ErrShort)
	})
}

// One Cipher is used by many goroutines; meant for the race detector.
func TestConcurrentUse(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode, c Cipher) { hammer(t, c) })
}

func hammer(t *testing.T, c Cipher) {
	t.Helper()
	head, tail := c.Overhead()
	var failed atomic.Bool
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			want := bytes.Repeat([]byte{byte(g)}, 200+g)
			packet := make([]byte, head+len(want)+tail)
			for range 200 {
				copy(packet[head:], want)
				err := c.Seal(packet)
				got, err2 := c.Open(packet)
				if err != nil || err2 != nil || !bytes.Equal(got, want) {
					failed.Store(true)
				}
			}
		})
	}
	wg.Wait()
	require.False(t, failed.Load())
}

func TestNoAllocations(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode, c Cipher) {
		head, tail := c.Overhead()
		packet := make([]byte, head+1000+tail)
		broken := make([]byte, len(packet))
		require.Zero(t, testing.AllocsPerRun(100, func() {
			if c.Seal(packet) != nil {
				panic("Seal")
			}
			if _, err := c.Open(packet); err != nil {
				panic("Open")
			}
			broken[head]++ // nothing but zeros would pass as "none"
			if _, err := c.Open(broken); err != ErrAuth {
				panic("opened")
			}
		}))
	})
}

func TestAuthenticatedAndRemaining(t *testing.T) {
	forEachMode(t, func(t *testing.T, m mode, c Cipher) {
		_, isAEAD := c.(*aead)
		require.Equal(t, isAEAD, Authenticated(c))
		require.Equal(t, isAEAD, Authenticated(Locked(c)))

		bounded := isAEAD && m.name != "xchacha20-poly1305"
		for _, c := range []Cipher{c, Locked(c)} {
			before := Remaining(c)
			seal(t, c, nil)
			if bounded {
				require.Equal(t, before-1, Remaining(c))
			} else {
				require.Equal(t, uint64(math.MaxUint64), Remaining(c))
			}
		}
	})
	require.False(t, Authenticated(nil))
	require.Equal(t, uint64(math.MaxUint64), Remaining(nil))
}

// stateful is a block cipher that works in a buffer of its own, as that of
// tjfoc/gmsm does.
type stateful struct {
	cipher.Block
	buf []byte
}

func (s *stateful) Encrypt(dst, src []byte) {
	copy(s.buf, src)
	s.Block.Encrypt(s.buf, s.buf)
	copy(dst, s.buf)
}

func TestLocked(t *testing.T) {
	for _, m := range modes {
		if m.block == nil {
			continue
		}
		block, err := m.block(numbered(m.keySize))
		require.NoError(t, err)
		plain := CFB(block)
		c := Locked(CFB(&stateful{block, make([]byte, block.BlockSize())}))
		hammer(t, c)
		got, err := plain.Open(seal(t, c, numbered(99)))
		require.NoError(t, err)
		require.Equal(t, numbered(99), got)
	}
}

// A key of a wrong size is refused, and the error names the cipher and the right sizes.
func TestKeySizes(t *testing.T) {
	for name, test := range map[string]struct {
		cipher func(key []byte) (Cipher, error)
		sizes  string
	}{
		"AES-GCM":            {AESGCM, "16, 24 or 32"},
		"ChaCha20-Poly1305":  {ChaCha20Poly1305, "32"},
		"XChaCha20-Poly1305": {XChaCha20Poly1305, "32"},
		"Salsa20":            {Salsa20, "32"},
	} {
		for n := range 70 {
			c, err := test.cipher(make([]byte, n))
			if strings.Contains(test.sizes, fmt.Sprintf("%02d", n)) {
				require.NoError(t, err)
				require.NotNil(t, c)
			} else {
				require.EqualError(t, err, fmt.Sprintf("crypt: %s takes a key of %s bytes, not %d", name, test.sizes, n))
				require.Nil(t, c)
			}
		}
	}
	_, err := AESGCM(nil)
	require.ErrorIs(t, err, aes.KeySizeError(0))
	// kcp-go's XOR takes any key.
	require.NotNil(t, XOR(nil))
}

// The constants of the package are the figures that WIRE.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "WIRE.md", []rulebook.Figure{
		{"| block ciphers, full-block CFB |", "nonce 16", nonceSize},
		{"| block ciphers, full-block CFB |", "what follows, 4", crcSize},
		{"| block ciphers, full-block CFB |", "nonce 16", headerSize - crcSize},
	})
}
