package protect

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"math/rand/v2"
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/stretchr/testify/require"
)

const testConv = 0x04030201

var suites = []uint16{tls.TLS_AES_128_GCM_SHA256, tls.TLS_AES_256_GCM_SHA384, tls.TLS_CHACHA20_POLY1305_SHA256}

// secretOf returns a secret of a suite's size.
func secretOf(t testing.TB, suite uint16, fill byte) []byte {
	s, err := newSuite(suite)
	require.NoError(t, err)
	return bytes.Repeat([]byte{fill}, s.size)
}

// pair returns the keys of two ends.
func pair(t testing.TB, suite uint16, level Level) (a, b *PacketKeys) {
	return pairOf(t, suite, level, false, false)
}

// pairOf is pair for ends that seal packets with nonces of their own, or not.
func pairOf(t testing.TB, suite uint16, level Level, ownA, ownB bool) (a, b *PacketKeys) {
	a, b = new(PacketKeys), new(PacketKeys)
	a.Init(testConv, level, ownA)
	b.Init(testConv, level, ownB)
	up, down := secretOf(t, suite, 1), secretOf(t, suite, 2)
	require.NoError(t, a.SetSealSecret(suite, up))
	require.NoError(t, b.SetOpenSecret(suite, up))
	require.NoError(t, b.SetSealSecret(suite, down))
	require.NoError(t, a.SetOpenSecret(suite, down))
	return a, b
}

// sealedBy returns content as a packet of k.
func sealedBy(t testing.TB, k *PacketKeys, content string) []byte {
	size := KeyedOverhead + len(content)
	if k.own {
		size += NonceSize
	}
	packet := make([]byte, size)
	copy(packet[HeaderSize:], content)
	require.NoError(t, k.Seal(packet))
	return packet
}

// requireOpens opens a packet, which must have that content and number.
func requireOpens(t testing.TB, k *PacketKeys, packet []byte, content string, number uint64) {
	t.Helper()
	got, n, err := k.Open(bytes.Clone(packet))
	require.NoError(t, err)
	require.Equal(t, content, string(got))
	require.Equal(t, number, n)
}

// byHand is HKDF-Expand-Label of RFC 8446 §7.1 for one block of SHA-256.
func byHand(secret []byte, label string, n int) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte{0, byte(n), byte(6 + len(label))})
	h.Write([]byte("tls13 " + label))
	h.Write([]byte{0, 1})
	return h.Sum(nil)[:n]
}

// The keys of a secret are those that WIRE.md §8.3 gives as an example, and a
// recorded packet opens.
func TestDerivation(t *testing.T) {
	const suite = tls.TLS_AES_128_GCM_SHA256
	secret := secretOf(t, suite, 1)
	k, err := newKey(suite, secret, false)
	require.NoError(t, err)
	require.Equal(t, byHand(secret, "kcp iv", 12), k.iv[:])
	block, err := newGCM(byHand(secret, "kcp key", 16))
	require.NoError(t, err)
	require.Equal(t, block.Seal(nil, k.iv[:], nil, nil), k.aead.Seal(nil, k.iv[:], nil, nil))
	next, err := k.following()
	require.NoError(t, err)
	require.Equal(t, byHand(secret, "kcp ku", 32), next.secret)
	require.Equal(t, byHand(next.secret, "kcp iv", 12), next.iv[:])

	a, b := pair(t, suite, Application)
	a.seal.next = 0x1_0000_0007
	packet := sealedBy(t, a, "hello")
	require.Equal(t, recordedPacket, hex.EncodeToString(packet))
	recorded, err := hex.DecodeString(recordedPacket)
	require.NoError(t, err)
	b.open.next = 0x1_0000_0000
	requireOpens(t, b, recorded, "hello", 0x1_0000_0007)
}

// recordedPacket is "hello" in packet number 2^32+7 of conversation 0x04030201,
// sealed by AES-128-GCM under a secret of 32 bytes 01.
const recordedPacket = "01020304a207000000c404e50f4382e3a4c445225b0cf8e07a00a35d2f38"

// Levels have keys of their own, and a packet of one does not open as another's.
func TestLevels(t *testing.T) {
	a, _ := pair(t, tls.TLS_AES_128_GCM_SHA256, Handshake)
	_, b := pair(t, tls.TLS_AES_128_GCM_SHA256, Application)
	_, _, err := b.Open(sealedBy(t, a, "x"))
	require.ErrorIs(t, err, ErrForged)
	require.Equal(t, Clear, LevelOf(make([]byte, 100)))
	for cmd := byte(81); cmd <= 85; cmd++ {
		p := make([]byte, 100)
		p[4] = cmd
		require.Equal(t, Clear, LevelOf(p))
	}
	for _, fec := range []byte{0xf1, 0xf2, 0xf3} {
		p := make([]byte, 100)
		p[4] = fec
		require.Equal(t, Clear, LevelOf(p))
	}
	require.Equal(t, Clear, LevelOf(sealedBy(t, a, "")[:KeyedOverhead-1]))
}

func TestNoSecret(t *testing.T) {
	var k PacketKeys
	k.Init(testConv, Application, false)
	require.False(t, k.Opens() || k.Seals())
	require.ErrorIs(t, k.Seal(make([]byte, 100)), ErrNotReady)
	_, _, err := k.Open(make([]byte, 100))
	require.ErrorIs(t, err, ErrNotReady)
	require.Error(t, k.SetSealSecret(0x1399, make([]byte, 32)))
	require.Error(t, k.SetOpenSecret(tls.TLS_AES_128_GCM_SHA256, make([]byte, 31)))
	require.False(t, k.Opens())
}

// Packets of the generation before open as long as their key is held, whatever
// the order, and old phases do not open under new keys.
func TestKeyUpdateReordered(t *testing.T) {
	a, b := pair(t, tls.TLS_AES_128_GCM_SHA256, Application)
	a.seal.update = 8
	var packets [][]byte
	for range 16 {
		packets = append(packets, sealedBy(t, a, "x"))
	}
	random := rand.New(rand.NewPCG(1, 2))
	for _, i := range random.Perm(len(packets)) {
		requireOpens(t, b, packets[i], "x", uint64(i))
	}
	// Both directions have many updates, with packets held back over one.
	for range 5 {
		requireOpens(t, a, sealedBy(t, b, "y"), "y", b.seal.next-1)
		late := sealedBy(t, a, "late") // begins the next generation, or is of this one
		for range 8 {
			packet := sealedBy(t, a, "x")
			requireOpens(t, b, packet, "x", a.seal.next-1)
		}
		number := a.seal.next - 9
		requireOpens(t, b, late, "late", number)
	}
}

// A peer that changes its keys again before this end has followed is refused, and
// not before: its packets open once this end has.
func TestKeyUpdateTooFast(t *testing.T) {
	a, b := pair(t, tls.TLS_AES_128_GCM_SHA256, Application)
	require.ErrorIs(t, new(PacketKeys).Update(), ErrNotReady)
	require.NoError(t, a.Update())
	requireOpens(t, b, sealedBy(t, a, "first"), "first", 0)
	require.NoError(t, a.Update())
	early := sealedBy(t, a, "second")
	for range 2 {
		_, _, err := b.Open(bytes.Clone(early))
		require.ErrorIs(t, err, ErrTooFast)
	}
	sealedBy(t, b, "followed")
	requireOpens(t, b, early, "second", 1)
}

// A key that the peer never follows is used up at its limit, and so are keys of
// which too much is forged.
func TestLimits(t *testing.T) {
	a, b := pair(t, tls.TLS_AES_128_GCM_SHA256, Application)
	require.EqualValues(t, 1<<22, a.seal.update)
	require.EqualValues(t, 1<<23, a.seal.limit)
	require.Equal(t, uint64(1<<36), a.open.limit)
	a.seal.update, a.seal.limit = 4, 8
	for range 4 + 8 {
		sealedBy(t, a, "x")
	}
	require.ErrorIs(t, a.Seal(make([]byte, KeyedOverhead)), ErrExhausted)

	a.seal.limit, b.open.limit = 100, 3
	good := sealedBy(t, a, "good")
	for range 2 {
		_, _, err := b.Open(make([]byte, KeyedOverhead))
		require.ErrorIs(t, err, ErrForged) // no packet of this level: not counted
		forged := bytes.Clone(good)
		forged[20] ^= 1
		_, _, err = b.Open(forged)
		require.ErrorIs(t, err, ErrForged)
	}
	requireOpens(t, b, good, "good", 12)
	forged := bytes.Clone(good)
	forged[20] ^= 1
	for _, p := range [][]byte{forged, good} {
		_, _, err := b.Open(bytes.Clone(p))
		require.ErrorIs(t, err, ErrExhausted)
	}

	c, _ := pair(t, tls.TLS_AES_128_GCM_SHA256, Application)
	c.seal.next = lastNumber
	sealedBy(t, c, "last")
	require.ErrorIs(t, c.Seal(make([]byte, KeyedOverhead)), ErrExhausted)
}

// An end whose packets have nonces of their own and one whose packets have not
// understand each other, over key updates too. Every bit of such a packet counts,
// and no two have the same nonce.
func TestOwnNonces(t *testing.T) {
	for _, suite := range suites[:2] {
		for _, own := range [][2]bool{{true, true}, {true, false}, {false, true}} {
			a, b := pairOf(t, suite, Application, own[0], own[1])
			a.seal.update, b.seal.update = 3, 3
			nonces := make(map[string]bool)
			for n := range uint64(20) {
				up := sealedBy(t, a, "up")
				require.Equal(t, own[0], up[typeAt]&ownNonce != 0)
				require.Equal(t, Application, LevelOf(up))
				if own[0] {
					require.Len(t, up, KeyedOverhead+NonceSize+2)
					nonces[string(up[HeaderSize:][:NonceSize])] = true
				}
				for i := range 8 * len(up) {
					forged := bytes.Clone(up)
					forged[i/8] ^= 1 << (i % 8)
					_, _, err := b.Open(forged)
					require.ErrorIs(t, err, ErrForged, "bit %d", i)
				}
				for i := range len(up) {
					_, _, err := b.Open(bytes.Clone(up[:i]))
					require.ErrorIs(t, err, ErrForged, "%d bytes", i)
				}
				requireOpens(t, b, up, "up", n)
				requireOpens(t, a, sealedBy(t, b, "down"), "down", n)
				a.Compact()
			}
			require.True(t, !own[0] || len(nonces) == 20)
			sent, received := a.Generations()
			require.Greater(t, min(sent, received), uint64(3))
		}
	}
	var k PacketKeys
	k.Init(testConv, Application, true)
	require.Error(t, k.SetSealSecret(tls.TLS_CHACHA20_POLY1305_SHA256, make([]byte, 32)))
}

func FuzzOpen(f *testing.F) {
	f.Add([]byte("packet"), uint8(0), uint32(0))
	f.Add(make([]byte, 100), uint8(1), uint32(9))
	f.Fuzz(func(t *testing.T, packet []byte, kind uint8, number uint32) {
		a, b := pair(t, tls.TLS_AES_128_GCM_SHA256, Application)
		if len(packet) >= KeyedOverhead {
			packet[typeAt] = typeHandshake + kind%3
		}
		if _, _, err := b.Open(bytes.Clone(packet)); err == nil {
			t.Fatal("a forged packet opens")
		}
		a.seal.next = uint64(number)
		own := sealedBy(t, a, string(packet))
		requireOpens(t, b, own, string(packet), uint64(number))
	})
}

// The constants of the package are the figures that RULES.md and WIRE.md say.
func TestKeyFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Key update", "2^22", updateAfter},
		{"| Key update", "2^23", confidentialityLimit},
		{"| Key update", "2^36", int64(integrityLimit)},
		{"| Stateless reset", "41 to 48", MinReset},
		{"| Keys derived from a cipher", "16 bytes", TagSize},
		{"| Keys derived from a cipher", "word of 4", wordSize},
		{"| Keys derived", "2^24", 1 << keyBits},
		{"| Keys derived", "2^62", int64(lastNumber + 1)},
		{"| Stateless reset", "48 bytes", MaxReset},
	})
	rulebook.Check(t, "WIRE.md", []rulebook.Figure{
		{"Each direction and level numbers", "2^62", int64(lastNumber + 1)},
		{"so no key seals more than", "2^24", 1 << keyBits},
		{"Numbers begin at 0 in each direction", "2^62", int64(lastNumber + 1)},
		{"of word are the packet number's", "29 bits", numberBits},
		{"| begins with conv | word 4", "conv 4", idSize},
		{"Key and mask are told", "16 bytes", ResetKeySize},
		{"A packet with a nonce of its own has", "12 bytes", NonceSize},
		{"The content is a packet of §1", "9 bytes", HeaderSize},
		{"nonce (12) | sealed bytes", "nonce (12)", NonceSize},
		{"nonce (12) | sealed bytes", "tag (16)", TagSize},
		{"nonce (12) | sealed bytes", "tag (16)", InitialOverhead - NonceSize},
		{"conv  | type | number  | sealed", "tag (16)", KeyedOverhead - HeaderSize},
	})
}
