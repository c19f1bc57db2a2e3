package kcp

import (
	"crypto/cipher"
	"encoding/binary"
	"fmt"
	"math/bits"
	"sync"
)

// sm4 is the block cipher SM4 (GB/T 32907-2016). It has no state besides the
// key, so it is safe for concurrent use.
type sm4 struct {
	box       *sm4Box
	roundKeys [sm4Rounds]uint32
}

const (
	sm4BlockSize = 16
	sm4Rounds    = 32
)

// sm4KeySizeError is the length of a key that SM4 does not have.
type sm4KeySizeError int

func (n sm4KeySizeError) Error() string {
	return fmt.Sprintf("kcp: SM4 needs a key of %d bytes, not %d", sm4BlockSize, int(n))
}

// newSM4 expands key, of 16 bytes (GB/T 32907-2016 §7.3).
func newSM4(key []byte) (cipher.Block, error) {
	if len(key) != sm4BlockSize {
		return nil, sm4KeySizeError(len(key))
	}
	familyKey := [4]uint32{0xa3b1bac6, 0x56aa3350, 0x677d9197, 0xb27022dc}
	c := &sm4{box: sm4Boxes()}
	var k [4]uint32
	for i := range k {
		k[i] = binary.BigEndian.Uint32(key[4*i:]) ^ familyKey[i]
	}
	for i := range c.roundKeys {
		// The bytes of the constant key are multiples of 7.
		var constant uint32
		for j := range 4 {
			constant = constant<<8 | uint32(byte(7*(4*i+j)))
		}
		t := c.box.substitute(k[1] ^ k[2] ^ k[3] ^ constant)
		t = k[0] ^ t ^ bits.RotateLeft32(t, 13) ^ bits.RotateLeft32(t, 23)
		k = [4]uint32{k[1], k[2], k[3], t}
		c.roundKeys[i] = t
	}
	return c, nil
}

// BlockSize implements cipher.Block.
func (c *sm4) BlockSize() int { return sm4BlockSize }

// Encrypt implements cipher.Block.
func (c *sm4) Encrypt(dst, src []byte) {
	a, b, d, e := sm4Load(src)
	for i := 0; i < sm4Rounds; i += 4 {
		k := c.roundKeys[i : i+4 : i+4]
		a ^= c.box.round(b ^ d ^ e ^ k[0])
		b ^= c.box.round(d ^ e ^ a ^ k[1])
		d ^= c.box.round(e ^ a ^ b ^ k[2])
		e ^= c.box.round(a ^ b ^ d ^ k[3])
	}
	sm4Store(dst, a, b, d, e)
}

// Decrypt implements cipher.Block: Encrypt with the round keys reversed.
func (c *sm4) Decrypt(dst, src []byte) {
	a, b, d, e := sm4Load(src)
	for i := sm4Rounds; i > 0; i -= 4 {
		k := c.roundKeys[i-4 : i : i]
		a ^= c.box.round(b ^ d ^ e ^ k[3])
		b ^= c.box.round(d ^ e ^ a ^ k[2])
		d ^= c.box.round(e ^ a ^ b ^ k[1])
		e ^= c.box.round(a ^ b ^ d ^ k[0])
	}
	sm4Store(dst, a, b, d, e)
}

func sm4Load(src []byte) (a, b, d, e uint32) {
	src = src[:sm4BlockSize]
	return binary.BigEndian.Uint32(src), binary.BigEndian.Uint32(src[4:]),
		binary.BigEndian.Uint32(src[8:]), binary.BigEndian.Uint32(src[12:])
}

// sm4Store writes the words in reverse order, as the standard has it.
func sm4Store(dst []byte, a, b, d, e uint32) {
	dst = dst[:sm4BlockSize]
	binary.BigEndian.PutUint32(dst, e)
	binary.BigEndian.PutUint32(dst[4:], d)
	binary.BigEndian.PutUint32(dst[8:], b)
	binary.BigEndian.PutUint32(dst[12:], a)
}

// sm4Box is the S-box of SM4, and the S-box followed by the linear map of a
// round, for the highest byte of a word. The other bytes rotate its entries.
type sm4Box struct {
	s     [256]byte
	mixed [256]uint32
}

// substitute replaces each byte of w.
func (t *sm4Box) substitute(w uint32) uint32 {
	return uint32(t.s[w>>24])<<24 | uint32(t.s[byte(w>>16)])<<16 |
		uint32(t.s[byte(w>>8)])<<8 | uint32(t.s[byte(w)])
}

// round is the map T of a round.
func (t *sm4Box) round(w uint32) uint32 {
	return t.mixed[w>>24] ^
		bits.RotateLeft32(t.mixed[byte(w>>16)], -8) ^
		bits.RotateLeft32(t.mixed[byte(w>>8)], -16) ^
		bits.RotateLeft32(t.mixed[byte(w)], -24)
}

// sm4Boxes returns the tables, which it computes once. The S-box is an affine
// map, the inverse in GF(2^8) modulo x^8+x^7+x^6+x^5+x^4+x^2+1, and the affine
// map again.
var sm4Boxes = sync.OnceValue(func() *sm4Box {
	affine := func(x byte) (y byte) {
		for i := range 8 {
			row := bits.RotateLeft8(0xa7, i)
			y |= byte(bits.OnesCount8(row&x)&1) << i
		}
		return y ^ 0xd3
	}
	t := new(sm4Box)
	for x := range t.s {
		t.s[x] = affine(sm4Inverse(affine(byte(x))))
		w := uint32(t.s[x]) << 24
		t.mixed[x] = w ^ bits.RotateLeft32(w, 2) ^ bits.RotateLeft32(w, 10) ^
			bits.RotateLeft32(w, 18) ^ bits.RotateLeft32(w, 24)
	}
	return t
})

// sm4Inverse returns the inverse of x in the field of the S-box, and 0 for 0:
// the 254th power.
func sm4Inverse(x byte) byte {
	times := func(a, b byte) (p byte) {
		for ; b != 0; b >>= 1 {
			if b&1 != 0 {
				p ^= a
			}
			high := a >> 7
			a = a<<1 ^ high*0xf5
		}
		return p
	}
	y := byte(1)
	for range 254 {
		y = times(y, x)
	}
	return y
}
