package admission

import (
	"bytes"
	"crypto/aes"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/stretchr/testify/require"
)

// A packet that does not open is told to be under the keys of a session only if it has a
// header of such packets. A predecessor is asked only then.
func TestKindOfUnopened(t *testing.T) {
	block, err := aes.NewCipher(make([]byte, 16))
	require.NoError(t, err)
	g := newGate("plain", 1)
	g.Protection = protect.NewScheme(crypt.CFB(block), false, nil)
	g.Outside = g.Protection.Outside
	random := rand.NewChaCha8([32]byte{1})
	var p protect.Packet // used again for each, as the reader does
	var kinds [Sealed + 1]int
	for range 400 {
		garbage := make([]byte, 60)
		_, _ = random.Read(garbage)
		other := protect.Packet{Data: bytes.Clone(garbage)}
		conv, named, ok := g.Protection.ReadHeader(&other, new([]byte))
		p.Data = garbage
		kind, of, why := g.Open(&p, Key{Addr: from}, new([]byte), new(sync.Mutex), g.now)
		require.Equal(t, Cipher, why)
		kinds[kind]++
		switch {
		case !ok:
			require.Equal(t, Plain, kind)
		case named:
			require.Equal(t, Sealed, kind)
			require.Equal(t, conv, of)
		default:
			require.Equal(t, Parity, kind)
		}
	}
	require.NotZero(t, kinds[Plain]*kinds[Sealed]*kinds[Parity])
}

// A HELLO or WELCOME that shows no token counts for nothing, and what is beside it does.
func TestSignalsWithoutToken(t *testing.T) {
	for _, token := range []uint32{0, 5} {
		b := make([]byte, 3*wire.HeaderSize)
		for i, s := range []wire.Signal{
			{Code: wire.Hello, SN: 0, TS: token}, {Code: wire.Info, SN: 2}, {Code: wire.Welcome, SN: token, TS: 9},
		} {
			s.Encode(wire.Header{Conv: 7}, b[i*wire.HeaderSize:])
		}
		f, ok := Parse(Plain, b, 7)
		require.True(t, ok)
		require.NotZero(t, f.Info.Code)
		require.Equal(t, [2]bool{token != 0, token != 0}, [2]bool{f.Hello.Code != 0, f.Request.Code != 0})
		m, ok := handshake.Parse(b, 7)
		require.True(t, ok)
		require.Equal(t, [2]bool{token != 0, token != 0}, [2]bool{m.Hello.Code != 0, m.Welcome.Code != 0})
	}
}
