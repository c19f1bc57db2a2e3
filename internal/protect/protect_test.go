package protect

import (
	"bytes"
	"crypto/aes"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/arqnet/kcp/crypt"

	"github.com/stretchr/testify/require"
)

// Numbers are found again in nonces of their session and direction, and in no
// other; the nonces of one differ.
func TestNonceOfPacket(t *testing.T) {
	for _, size := range []int{12, 16, 24, 32} {
		limit := exhaustedAt(size)
		bases := []nonceBase{newNonceBase(1, 2, 3), newNonceBase(1, 3, 2), newNonceBase(2, 2, 3), newNonceBase(1, 2, 4)}
		for i, b := range bases {
			seen := make(map[string]bool)
			for _, n := range []uint64{0, 1, 2, 255, 256, 1<<31 - 1, 1 << 31, 1<<32 - 2, limit - 1} {
				nonce := make([]byte, size)
				b.put(nonce, n)
				require.False(t, seen[string(nonce)] && n != limit-1)
				seen[string(nonce)] = true
				for j, other := range bases {
					got, ok := other.number(nonce)
					require.Equal(t, i == j, ok)
					if ok {
						require.Equal(t, n, got)
					}
				}
			}
		}
		_, ok := bases[0].number(nil)
		require.False(t, ok)
	}
}

// number returns what Scheme.Number makes of a protection.
func number(s *Scheme, p Protection, conv, token, peerToken, capabilities uint32, sends bool) Protection {
	var of atomic.Pointer[Protection]
	of.Store(&p)
	s.Number(&of, conv, token, peerToken, capabilities, sends)
	return *of.Load()
}

// The packets of a session are as the example of WIRE.md §4.1 says.
func TestKeyedPacket(t *testing.T) {
	block, err := aes.NewCipher([]byte("0123456789abcdef"))
	require.NoError(t, err)
	scheme := NewScheme(crypt.CFB(block), false, nil)
	scheme.Capabilities = CapKeys // of AES-GCM, also where it is slow
	end := func(token, peerToken uint32) *Keyed {
		return number(scheme, scheme.Outside, 1, token, peerToken, CapKeys, true).(*Keyed)
	}
	k := end(2, 3)
	content := append([]byte{1, 0, 0, 0}, "hello"...)
	packet := make([]byte, PresharedOverhead+len(content))
	for range 6 {
		require.NoError(t, k.Seal(packet, content))
	}
	require.Equal(t, "553ec7e1743476bcbecd1a08ac9d856d5f9d57f25c3d662737f5e5fd4e", hex.EncodeToString(packet))
	for _, other := range []*Keyed{k, end(2, 4), end(4, 2), number(scheme, scheme.Outside, 2, 3, 2, CapKeys, true).(*Keyed)} {
		p := Packet{Data: bytes.Clone(packet)}
		conv, named, ok := scheme.ReadHeader(&p, new([]byte))
		require.True(t, ok && named)
		require.EqualValues(t, 1, conv)
		require.Error(t, other.Open(&p))
	}
	p := Packet{Data: packet}
	_, _, _ = scheme.ReadHeader(&p, new([]byte))
	require.NoError(t, end(3, 2).Open(&p))
	require.Equal(t, content, p.Data)
}

// KeysOf are derived from ciphers that hide content, as long as they make the same of the
// same, and from no other.
func TestWhatDerivesKeys(t *testing.T) {
	salsa, err := crypt.Salsa20(make([]byte, 32))
	require.NoError(t, err)
	gcm, err := crypt.AESGCM(make([]byte, 16))
	require.NoError(t, err)
	for _, c := range []crypt.Cipher{nil, crypt.None(), crypt.XOR(nil), gcm, struct{ crypt.Cipher }{salsa}, &unstable{NonceCipher: salsa.(crypt.NonceCipher)}} {
		scheme := NewScheme(c, false, nil)
		require.False(t, scheme.Derives || scheme.Capabilities != 0)
		if !scheme.Authentic {
			require.Equal(t, scheme.Outside, number(scheme, scheme.Outside, 1, 2, 3, CapKeys, true))
		}
	}
	require.True(t, NewScheme(salsa, false, nil).Derives)
	require.True(t, NewScheme(crypt.Locked(salsa), false, nil).Derives)
}

// unstable is a cipher that changes its key.
type unstable struct {
	crypt.NonceCipher
	sealed byte
}

func (c *unstable) SealNonce(packet []byte) error {
	c.sealed++
	packet[len(packet)-1] ^= c.sealed
	return c.NonceCipher.SealNonce(packet)
}

// kinds are the protections that a session may have.
var kinds = []string{"none", "filtered", "numbered", "keyed", "tls"}

// ends returns the protections of both ends of a session.
func ends(t testing.TB, kind string) (a, b Protection) {
	t.Helper()
	key := make([]byte, 16)
	gcm, err := crypt.AESGCM(key)
	require.NoError(t, err)
	salsa, err := crypt.Salsa20(make([]byte, 32))
	require.NoError(t, err)
	both := func(c crypt.Cipher, secured bool) (a, b Protection) {
		x, y := NewScheme(c, secured, nil), NewScheme(c, secured, nil)
		a, _, _ = x.Session(1)
		b, _, _ = y.Session(1)
		if kind == "filtered" {
			return a, b
		}
		return number(x, a, 1, 2, 3, CapKeys, true), number(y, b, 1, 3, 2, CapKeys, true)
	}
	switch kind {
	case "filtered", "numbered":
		return both(gcm, false)
	case "keyed":
		return both(salsa, false)
	case "tls":
		a, b = both(nil, true)
		for i, from := range []Protection{a, b} {
			secret := sha256.Sum256([]byte{byte(i)})
			to := []Protection{b, a}[i]
			require.NoError(t, from.(*TLS).Keys.SetSealSecret(tls.TLS_AES_128_GCM_SHA256, secret[:]))
			require.NoError(t, to.(*TLS).Keys.SetOpenSecret(tls.TLS_AES_128_GCM_SHA256, secret[:]))
		}
		return a, b
	}
	return both(nil, false)
}

// sealed returns a packet of p.
func sealed(t testing.TB, p Protection, content []byte) []byte {
	t.Helper()
	head, tail := p.Overhead()
	packet := make([]byte, head+len(content)+tail)
	copy(packet[head:], content)
	require.NoError(t, p.Sender().Seal(packet, nil))
	return packet
}

// arrives returns what an end makes of a packet, which it takes.
func arrives(p Protection, packet []byte) (content []byte, v Verdict, err error) {
	in := Packet{Data: bytes.Clone(packet)}
	if err := opens(p, &in); err != nil {
		return nil, Replayed, err
	}
	return in.Data, p.Fresh(&in, true), nil
}

// opens opens a packet as an endpoint does: by the keys that its header names, or else by
// the cipher.
func opens(p Protection, in *Packet) error {
	k, ok := p.(*Keyed)
	if !ok {
		return p.Open(in)
	}
	kept := bytes.Clone(in.Data)
	if conv, named, ok := NewScheme(k.cipher, false, nil).ReadHeader(in, new([]byte)); ok && (!named || conv == 1) && k.Open(in) == nil {
		return nil
	}
	in.Data = kept
	return k.filtered.Open(in)
}

// requireNew requires that an end takes a packet.
func requireNew(t testing.TB, p Protection, packet, content []byte) {
	t.Helper()
	got, v, err := arrives(p, packet)
	require.NoError(t, err)
	require.Equal(t, New, v)
	require.Equal(t, len(content), len(got))
	require.True(t, bytes.Equal(content, got))
}

// requireRefused requires that an end does not take a packet.
func requireRefused(t testing.TB, p Protection, packet []byte, why string) {
	t.Helper()
	if _, v, err := arrives(p, packet); err == nil {
		require.NotEqual(t, New, v, why)
	}
}

// A packet that is only looked at is new the next time.
func TestLook(t *testing.T) {
	for _, kind := range kinds[1:] {
		a, b := ends(t, kind)
		p := Packet{Data: sealed(t, a, make([]byte, 20))}
		require.NoError(t, opens(b, &p))
		for range 2 {
			require.Equal(t, New, b.Fresh(&p, false), kind)
		}
		_, numbered := b.Number(&p)
		require.Equal(t, kind != "filtered", numbered)
		require.Equal(t, New, b.Fresh(&p, true))
		require.Equal(t, Replayed, b.Fresh(&p, false))
		if numbered {
			number, _ := b.Number(&p)
			require.Zero(t, number)
			require.False(t, b.IsLatest(number))
			require.True(t, b.IsLatest(number+1))
		}
	}
}

// Once the peer has numbered a packet, one without a number is foreign. A session
// numbers its packets if the peer is known to have both tokens, or has done so
// first. Other tokens make other numbers.
func TestNumbersBegin(t *testing.T) {
	for _, kind := range []string{"numbered", "keyed"} {
		_, b := ends(t, kind)
		var cipher crypt.Cipher
		switch b := b.(type) {
		case *Numbered:
			cipher = b.cipher
		case *Keyed:
			cipher = b.cipher
		}
		scheme := NewScheme(cipher, false, nil)
		without, _, _ := scheme.Session(1)
		for _, tokens := range [][2]uint32{{0, 3}, {2, 0}, {2, 2}} {
			require.Equal(t, without, number(scheme, without, 1, tokens[0], tokens[1], CapKeys, true))
		}
		a := number(scheme, without, 1, 2, 3, CapKeys, false)
		require.Equal(t, without, a.Sender())
		require.Same(t, a, number(scheme, a, 1, 2, 3, CapKeys, false))
		require.NotSame(t, a, number(scheme, a, 1, 2, 4, CapKeys, false))
		content := make([]byte, 20)
		requireNew(t, b, sealed(t, a, content), content) // neither has numbered one
		requireNew(t, a, sealed(t, b, content), content)
		require.Same(t, a, a.Sender())
		requireNew(t, b, sealed(t, a, content), content)
		_, v, err := arrives(b, sealed(t, without, content))
		require.NoError(t, err)
		require.Equal(t, Foreign, v)
		next, sends, heard := b.(interface{ Progress() (uint64, bool, bool) }).Progress()
		require.EqualValues(t, 1, next)
		require.True(t, sends && heard)
	}
}

// Numbers end, and do not come around.
func TestNumbersEnd(t *testing.T) {
	for _, kind := range []string{"numbered", "keyed"} {
		a, _ := ends(t, kind)
		switch a := a.(type) {
		case *Numbered:
			a.Skip(exhaustedAt(minNonce)-1, 0)
		case *Keyed:
			a.Skip(1<<62-1, 0)
		}
		sealed(t, a, make([]byte, 20))
		for range 2 {
			require.ErrorIs(t, a.Seal(make([]byte, 100), nil), crypt.ErrKeyExhausted)
		}
	}
}

// A content elsewhere stays as it is, and makes the same packet.
func TestSealFromElsewhere(t *testing.T) {
	for _, kind := range []string{"filtered", "numbered", "keyed", "tls"} {
		a, b := ends(t, kind)
		head, tail := a.Overhead()
		content := []byte("a content elsewhere")
		packet := make([]byte, head+len(content)+tail)
		require.NoError(t, a.Sender().Seal(packet, content))
		require.Equal(t, "a content elsewhere", string(content))
		requireNew(t, b, packet, content)
	}
}

// Sealing, opening and judging allocate nothing.
func TestAllocations(t *testing.T) {
	for _, kind := range kinds {
		a, b := ends(t, kind)
		head, tail := a.Overhead()
		packet := make([]byte, head+1200+tail)
		in, scratch := new(Packet), []byte(nil)
		scheme := NewScheme(nil, false, nil)
		if k, ok := b.(*Keyed); ok {
			scheme = NewScheme(k.cipher, false, nil)
		}
		require.Zero(t, testing.AllocsPerRun(100, func() {
			if a.Seal(packet, nil) != nil {
				panic("not sealed")
			}
			in.Data, in.by = packet, nil
			scheme.ReadHeader(in, &scratch)
			if b.Open(in) != nil || b.Fresh(in, true) != New {
				panic("not new")
			}
		}), kind)
	}
}

// FuzzProtection sends contents of any size both ways, in any order within the
// windows, and has every bit, and packets of any bytes, refused.
func FuzzProtection(f *testing.F) {
	f.Add(uint8(0), uint64(1), []byte("content"))
	for i := range kinds {
		f.Add(uint8(i), uint64(i), bytes.Repeat([]byte{byte(i), 81}, 40))
	}
	f.Fuzz(func(t *testing.T, which uint8, seed uint64, data []byte) {
		kind := kinds[int(which)%len(kinds)]
		random := rand.New(rand.NewPCG(seed, 1))
		a, b := ends(t, kind)
		for _, p := range []Protection{a, b} { // neither knows of any packet yet
			_, v, err := arrives(p, data)
			require.True(t, kind == "none" || kind == "keyed" || err != nil, "random bytes open: %d", v)
		}
		if kind == "keyed" {
			a, b = ends(t, kind) // with an empty key anyone can make a packet without number
		}
		var packets, contents [][]byte
		for range 1 + random.IntN(20) {
			n := random.IntN(len(data) + 1)
			contents = append(contents, data[:n])
			packets = append(packets, sealed(t, a, data[:n]))
		}
		for k, i := range random.Perm(len(packets)) {
			if kind != "none" && (k > 0 || kind != "keyed") { // the first one shows that the keys are in use
				forged := bytes.Clone(packets[i])
				forged[random.IntN(len(forged))] ^= 1 << random.IntN(8)
				requireRefused(t, b, forged, "tampered")
			}
			requireNew(t, b, packets[i], contents[i])
			if kind != "none" {
				requireRefused(t, b, packets[i][:random.IntN(len(packets[i]))], "cut")
				requireRefused(t, b, packets[i], "again")
				requireRefused(t, a, packets[i], "reflected")
			}
		}
		requireNew(t, a, sealed(t, b, data), data)
		a.Compact()
		b.Compact()
		requireNew(t, b, sealed(t, a, data), data)
	})
}
