package protect

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// presharedEnds returns the keys of both ends of a session, and what reads headers.
func presharedEnds(t testing.TB, conv uint32) (s *Preshared, a, b *SessionKeys) {
	t.Helper()
	s, err := NewPreshared([]byte("a secret"))
	require.NoError(t, err)
	return s, s.Session(conv, 2, 3), s.Session(conv, 3, 2)
}

// contentsOf returns contents of each form, and of sizes where they change.
func contentsOf(conv uint32) (all [][]byte) {
	random := rand.New(rand.NewPCG(1, 2))
	for n := range 100 {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		for _, at := range []int{0, framedAt, -1} {
			c := bytes.Clone(b)
			if at >= 0 && at+idSize <= n {
				binary.LittleEndian.PutUint32(c[at:], conv)
			}
			all = append(all, c)
		}
	}
	return all
}

// sealPreshared seals a content in its place, or from elsewhere, in which case it stays.
func sealPreshared(t testing.TB, k *SessionKeys, content []byte, elsewhere bool) []byte {
	t.Helper()
	packet := make([]byte, PresharedOverhead+len(content))
	if elsewhere {
		kept := bytes.Clone(content)
		require.NoError(t, k.Seal(packet, content))
		require.Equal(t, kept, content)
		return packet
	}
	copy(packet[PresharedOverhead:], content)
	require.NoError(t, k.Seal(packet, nil))
	return packet
}

// A content of any form and size comes out as it went in; its header says whose it is,
// if the content does.
func TestPresharedForms(t *testing.T) {
	for _, chacha := range []bool{false, true} {
		s, a, b := presharedEnds(t, 77)
		a.UseChaCha(chacha)
		for i, content := range contentsOf(77) {
			packet := sealPreshared(t, a, content, i%2 == 0)
			var h PresharedHeader
			require.True(t, s.Read(packet, make([]byte, 16), &h))
			require.Equal(t, formOf(content, 77), h.Form)
			require.Equal(t, h.Form != Nameless, h.Conv == 77)
			got, number, err := b.Open(packet, &h)
			require.NoError(t, err)
			require.EqualValues(t, i, number)
			require.True(t, bytes.Equal(content, got))
		}
		require.EqualValues(t, 300, a.Next())
	}
}

// Any change of a packet is found, as is one of another session, direction or secret.
func TestPresharedForgeries(t *testing.T) {
	s, a, b := presharedEnds(t, 77)
	other, err := NewPreshared([]byte("another secret"))
	require.NoError(t, err)
	refuses := func(by *SessionKeys, from *Preshared, packet []byte) {
		t.Helper()
		var h PresharedHeader
		packet = bytes.Clone(packet)
		if from.Read(packet, make([]byte, 16), &h) && (h.Form == Nameless || h.Conv == 77) {
			_, _, err := by.Open(packet, &h)
			require.Error(t, err)
		}
	}
	for _, content := range [][]byte{contentsOf(77)[90], contentsOf(77)[91], contentsOf(77)[92]} {
		packet := sealPreshared(t, a, content, true)
		for i := range packet {
			for bit := range 8 {
				forged := bytes.Clone(packet)
				forged[i] ^= 1 << bit
				refuses(b, s, forged)
			}
			refuses(b, s, packet[:i])
		}
		refuses(b, s, append(bytes.Clone(packet), 0))
		refuses(a, s, packet)
		refuses(other.Session(77, 3, 2), other, packet)
		for _, ids := range [][3]uint32{{78, 3, 2}, {77, 4, 2}, {77, 3, 4}} {
			var h PresharedHeader
			require.True(t, s.Read(packet, make([]byte, 16), &h))
			_, _, err := s.Session(ids[0], ids[1], ids[2]).Open(bytes.Clone(packet), &h)
			require.ErrorIs(t, err, ErrForged)
		}
		var h PresharedHeader
		require.True(t, s.Read(packet, make([]byte, 16), &h))
		got, _, err := b.Open(packet, &h)
		require.NoError(t, err)
		require.Equal(t, content, got)
	}
}

// Keys change with the numbers, in whatever order packets come there, and what is
// forged in between changes nothing. A number much farther away is taken for forged.
func TestPresharedKeysChange(t *testing.T) {
	s, a, b := presharedEnds(t, 77)
	const border = 5 << keyBits
	a.Skip(border-50, 0)
	b.Skip(0, border-60)
	random := rand.New(rand.NewPCG(1, 2))
	var packets [][]byte
	for i := range 100 {
		if i == 70 {
			a.UseChaCha(true)
		}
		packets = append(packets, sealPreshared(t, a, []byte{77, 0, 0, 0, byte(i)}, false))
	}
	for k, i := range random.Perm(len(packets)) {
		var h PresharedHeader
		require.True(t, s.Read(packets[i], make([]byte, 16), &h))
		forged, f := bytes.Clone(packets[i]), PresharedHeader{}
		forged[random.IntN(4)] ^= 1 << random.IntN(8)
		if s.Read(forged, make([]byte, 16), &f) {
			_, _, err := b.Open(forged, &f)
			require.ErrorIs(t, err, ErrForged)
		}
		if k == 50 {
			a.Compact()
			b.Compact()
		}
		got, number, err := b.Open(packets[i], &h)
		require.NoError(t, err)
		require.Equal(t, byte(i), got[4])
		require.EqualValues(t, border-50+i, number)
	}
	a.Skip(border+2<<keyBits, 0)
	p := sealPreshared(t, a, []byte{77, 0, 0, 0}, false)
	var h PresharedHeader
	require.True(t, s.Read(p, make([]byte, 16), &h))
	_, _, err := b.Open(p, &h)
	require.ErrorIs(t, err, ErrForged)
	a.Skip(lastNumber, 0)
	sealPreshared(t, a, []byte{77, 0, 0, 0}, false)
	require.ErrorIs(t, a.Seal(make([]byte, 50), nil), ErrExhausted)
}

// What does not open is counted, until nothing is opened any more.
func TestPresharedForgeriesAreCounted(t *testing.T) {
	s, a, b := presharedEnds(t, 77)
	b.open.forged = integrityLimit - 1
	p := sealPreshared(t, a, []byte{77, 0, 0, 0}, false)
	var h PresharedHeader
	require.True(t, s.Read(p, make([]byte, 16), &h))
	forged := bytes.Clone(p)
	forged[len(forged)-1] ^= 1
	_, _, err := b.Open(forged, &h)
	require.ErrorIs(t, err, ErrForged)
	_, _, err = b.Open(p, &h)
	require.ErrorIs(t, err, ErrExhausted)
}
