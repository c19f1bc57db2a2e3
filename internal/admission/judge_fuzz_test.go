package admission

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/stretchr/testify/require"
)

// FuzzJudge has packets of any bytes judged in states of all kinds: nothing panics,
// packets are judged three times at most, answers are within their limits, and a packet
// opens a session only if a session may open.
func FuzzJudge(f *testing.F) {
	tie := signal(wire.Tiebreak, 5, 6)
	for setup := range uint8(3) {
		for _, seed := range [][]byte{
			hello, first, later, ping, packetOf(hello, put(info(setup == 2))), initial(0, hello, put(info(true))),
			initial(1, hello, put(info(true))), sealedSeed(),
			packetOf(hello, put(info(setup == 2)), tie), tie, initial(0, hello, put(info(true)), tie),
		} {
			f.Add(setup, uint32(0), seed)
			f.Add(setup, uint32(0xffff), seed)
			f.Add(setup, uint32(0x30b5), seed)
			f.Add(setup, uint32(0x10001), seed)
			f.Add(setup, uint32(0x30001), seed)
		}
	}
	f.Fuzz(func(t *testing.T, setup uint8, state uint32, packet []byte) {
		if len(packet) > 4096 {
			return
		}
		g := newGate(wires[setup%3], uint64(state))
		bit := func(n int) bool { return state>>n&1 != 0 }
		g.state = State{Listening: !bit(0), Closed: bit(1)}
		g.full, g.half, g.AlwaysValidate, g.RefusesLegacy = bit(2), bit(3), bit(4), bit(5)
		g.dials, g.crowded = bit(16), bit(17)
		if g.SharedConvs = bit(6); g.SharedConvs {
			g.Migrates = false
		}
		if bit(7) {
			g.add(elsewhere, Idle)
		}
		if bit(8) {
			g.add(from, Idle)
		}
		if bit(9) {
			e := Ended{Token: token * (state >> 10 & 1), Aborted: bit(11), Dropped: bit(12), Mute: bit(13)}
			if g.TLS {
				ours, _ := g.pair(protect.Level(1 + state>>14&1))
				e.Protection, e.Shaking = ours, !bit(14)
			}
			g.end(from, e)
		}
		if !g.TLS && g.Authentic {
			packet = sealed(g.Outside, packet)
			g.scheme.Forget()
		}
		got, _ := g.judged(t, packet, bit(15))
		if strings.Contains(got, "open") && got != "does not open" && !strings.Contains(got, "half open") {
			require.False(t, g.state.Closed)
			require.True(t, g.state.Listening && !g.full || g.dials && !g.crowded)
		}
	})
}

// sealedSeed returns a packet that looks like one of a session with TLS.
func sealedSeed() []byte {
	g := newGate("tls", 1)
	_, k := g.pair(protect.Application)
	return sealed(k, later)
}

// A packet's kind is found once, by its first bytes.
func TestClassify(t *testing.T) {
	fecHeader := func(kind uint16, more ...byte) []byte {
		b := make([]byte, fec.HeaderSize)
		binary.LittleEndian.PutUint16(b[4:], kind)
		return append(b, more...)
	}
	for _, test := range []struct {
		packet []byte
		tls    bool
		kind   Kind
		conv   uint32
		ok     bool
	}{
		{hello, false, Plain, conv, true},
		{hello, true, Clear, conv, true},
		{hello[:23], false, Plain, 0, false},
		{hello[:23], true, Plain, 0, false},
		{fecHeader(fec.TypeData, hello...), false, FEC, conv, true},
		{fecHeader(fec.TypeData, hello[:23]...), false, FEC, 0, false},
		{fecHeader(fec.TypeParity, 1), false, Parity, 0, true},
		{fecHeader(fec.TypeParity), false, Parity, 0, false},
		{sealedSeed(), true, Sealed, conv, true},
	} {
		kind, c, ok := Classify(test.packet, test.tls)
		require.Equal(t, test.ok, ok, "%x", test.packet)
		if ok {
			require.Equal(t, test.kind, kind)
			require.Equal(t, test.conv, c)
		}
	}
}
