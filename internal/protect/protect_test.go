package protect

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"math/rand/v2"
	"testing"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/packetmac"
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

// The code is made under the tokens and in the direction that WIRE.md says.
func TestPacketMACs(t *testing.T) {
	made := func(conv, token, peerToken uint32) *macs {
		m, err := newMACs(conv, token, peerToken)
		require.NoError(t, err)
		return m
	}
	a, b := made(1, 2, 3), made(1, 3, 2)
	nonce, data := make([]byte, packetmac.NonceSize), []byte("hello")
	a.ours.Mark(nonce, data, 5)
	require.True(t, b.theirs.Check(nonce, data, 5))
	for _, other := range []*packetmac.Key{a.theirs, b.ours, made(2, 3, 2).theirs, made(1, 3, 4).theirs} {
		require.False(t, other.Check(nonce, data, 5))
	}
	require.Equal(t, "cebabc8eed09e6262e91d9a305000000", hex.EncodeToString(nonce)) // the example of WIRE.md §4.1
}

// kinds are the protections that a session may have.
var kinds = []string{"none", "filtered", "numbered", "marked", "tls"}

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
		return x.Number(a, 1, 2, 3, true), y.Number(b, 1, 3, 2, true)
	}
	switch kind {
	case "filtered", "numbered":
		return both(gcm, false)
	case "marked":
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
	if err := p.Open(&in); err != nil {
		return nil, Replayed, err
	}
	return in.Data, p.Fresh(&in, true), nil
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

// A packet counts once, and not at the end that has sent it; packets count in
// whatever order they come.
func TestOnceInAnyOrder(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			a, b := ends(t, kind)
			var packets [][]byte
			for i := range 100 {
				packets = append(packets, sealed(t, a, []byte{byte(i), 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}))
			}
			for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(len(packets)) {
				got, v, err := arrives(b, packets[i])
				require.NoError(t, err)
				require.Equal(t, New, v)
				require.Equal(t, byte(i), got[0])
			}
			if kind == "none" {
				return
			}
			for _, p := range packets {
				requireRefused(t, b, p, "again")
				requireRefused(t, a, p, "reflected")
			}
		})
	}
}

// A packet that is only looked at is new the next time.
func TestLook(t *testing.T) {
	for _, kind := range kinds[1:] {
		a, b := ends(t, kind)
		p := Packet{Data: sealed(t, a, make([]byte, 20))}
		require.NoError(t, b.Open(&p))
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

// A packet of TLS counts only once its session has opened it.
func TestUnopenedDoesNotCount(t *testing.T) {
	_, b := ends(t, "tls")
	p := Packet{Data: make([]byte, 100)}
	require.Equal(t, Replayed, b.Fresh(&p, true))
	_, ok := b.Number(&p)
	require.False(t, ok)
}

// Once the peer has numbered a packet, one without a number is foreign. A session
// numbers its packets if the peer is known to have both tokens, or has done so
// first. Other tokens make other numbers.
func TestNumbersBegin(t *testing.T) {
	for _, kind := range []string{"numbered", "marked"} {
		_, b := ends(t, kind)
		scheme := NewScheme(b.(*Numbered).cipher, false, nil)
		without, _, _ := scheme.Session(1)
		for _, tokens := range [][2]uint32{{0, 3}, {2, 0}, {2, 2}} {
			require.Equal(t, without, scheme.Number(without, 1, tokens[0], tokens[1], true))
		}
		a := scheme.Number(without, 1, 2, 3, false)
		require.Equal(t, without, a.Sender())
		require.Same(t, a, scheme.Number(a, 1, 2, 3, false))
		require.NotSame(t, a, scheme.Number(a, 1, 2, 4, false))
		content := make([]byte, 20)
		requireNew(t, b, sealed(t, a, content), content) // neither has numbered one
		requireNew(t, a, sealed(t, b, content), content)
		require.Same(t, a, a.Sender())
		requireNew(t, b, sealed(t, a, content), content)
		_, v, err := arrives(b, sealed(t, without, content))
		require.NoError(t, err)
		require.Equal(t, Foreign, v)
		next, sends, heard := b.(*Numbered).Progress()
		require.EqualValues(t, 1, next)
		require.True(t, sends && heard)
	}
}

// Numbers end, and do not come around.
func TestNumbersEnd(t *testing.T) {
	for kind, last := range map[string]uint64{"numbered": exhaustedAt(minNonce) - 1, "marked": packetmac.Numbers - 1} {
		a, _ := ends(t, kind)
		a.(*Numbered).Skip(last, 0)
		sealed(t, a, make([]byte, 20))
		for range 2 {
			require.ErrorIs(t, a.Seal(make([]byte, 100), nil), crypt.ErrKeyExhausted)
		}
	}
}

// A content elsewhere stays as it is, and makes the same packet.
func TestSealFromElsewhere(t *testing.T) {
	for _, kind := range []string{"filtered", "numbered", "tls"} {
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
		in := new(Packet)
		require.Zero(t, testing.AllocsPerRun(100, func() {
			if a.Seal(packet, nil) != nil {
				panic("not sealed")
			}
			in.Data = packet
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
			require.True(t, kind == "none" || kind == "marked" || err != nil, "random bytes open: %d", v)
		}
		if kind == "marked" {
			a, b = ends(t, kind) // with an empty key anyone can make a packet without number
		}
		var packets, contents [][]byte
		for range 1 + random.IntN(20) {
			n := random.IntN(len(data) + 1)
			contents = append(contents, data[:n])
			packets = append(packets, sealed(t, a, data[:n]))
		}
		for k, i := range random.Perm(len(packets)) {
			if kind != "none" && (k > 0 || kind != "marked") { // the first one shows that packets are numbered
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
