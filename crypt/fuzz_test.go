package crypt

import (
	"bytes"
	"testing"
)

// FuzzOpen opens any bytes with every cipher: nothing panics or is touched
// outside of the packet, and what opens is what Seal makes with the same nonce.
func FuzzOpen(f *testing.F) {
	for _, g := range goldenPackets(f) {
		for i, m := range modes {
			if m.name == g.mode && len(g.packet) < 200 {
				f.Add(byte(i), g.key, g.packet)
			}
		}
	}
	for n := range 40 {
		f.Add(byte(n), []byte{}, make([]byte, n))
	}
	f.Fuzz(func(t *testing.T, which byte, key, packet []byte) {
		m := modes[int(which)%len(modes)]
		key = append(key, make([]byte, m.keySize)...)[:m.keySize]
		c, err := m.cipher(key)
		if err != nil {
			t.Fatal(err)
		}
		head, tail := c.Overhead()
		buf := append(bytes.Clone(packet), 1, 2, 3, 4, 5, 6, 7, 8)
		p := buf[:len(packet)]

		plaintext, err := c.Open(p)
		if (err == ErrShort) != (len(p) < head+tail) || err != nil && err != ErrShort && err != ErrAuth {
			t.Fatalf("%s: %v for %d bytes", m.name, err, len(p))
		}
		if k, ok := c.(*checked); ok && err != ErrShort {
			if err == nil {
				k.seal(p)
			} else {
				k.encrypt(p)
			}
		} else if err == nil {
			if len(plaintext) != len(p)-head-tail {
				t.Fatalf("%s: %d bytes of plaintext in %d", m.name, len(plaintext), len(p))
			}
			reseal(t, c, p)
		}
		if err != ErrAuth || !Authenticated(c) {
			if !bytes.Equal(p, packet) {
				t.Fatalf("%s: %x became %x", m.name, packet, p)
			}
		}
		if !bytes.Equal(buf[len(p):], []byte{1, 2, 3, 4, 5, 6, 7, 8}) {
			t.Fatalf("%s: wrote behind the packet", m.name)
		}
	})
}

// FuzzSeal seals any content with any key and opens it again.
func FuzzSeal(f *testing.F) {
	for i := range modes {
		for _, n := range []int{0, 1, 11, 12, 13, 100} {
			f.Add(byte(i), numbered(i), numbered(n), uint16(n))
		}
	}
	f.Fuzz(func(t *testing.T, which byte, key, plaintext []byte, damage uint16) {
		m := modes[int(which)%len(modes)]
		key = append(key, make([]byte, m.keySize)...)[:m.keySize]
		c, err := m.cipher(key)
		if err != nil {
			t.Fatal(err)
		}
		packet := seal(t, c, plaintext)
		damaged := bytes.Clone(packet)
		got, err := c.Open(packet)
		if err != nil || !bytes.Equal(got, plaintext) {
			t.Fatalf("%s: %x became %x, %v", m.name, plaintext, got, err)
		}

		i := int(damage/8) % len(damaged)
		damaged[i] ^= 1 << (damage % 8)
		got, err = c.Open(damaged)
		if m.unchecked[0] <= i && i < m.unchecked[1] {
			if err != nil || !bytes.Equal(got, plaintext) {
				t.Fatalf("%s: byte %d of the nonce matters", m.name, i)
			}
		} else if err != ErrAuth {
			t.Fatalf("%s: %v with byte %d damaged", m.name, err, i)
		}
	})
}
