package admission

import (
	"testing"

	"github.com/arqnet/kcp/internal/protect"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/stretchr/testify/require"
)

// A HELLO with TIEBREAKER opens a session only if it is expected, and then whether the
// endpoint listens or not, and however many sessions it has. It is never refused. Beside
// another one, or many, it needs a cookie. No session elsewhere is asked for it.
func TestJudgeSimultaneousOpen(t *testing.T) {
	t.Parallel()
	for _, setup := range wires {
		for n := range 16 {
			listens, expected, crowded, full := n&1 > 0, n&2 > 0, n&4 > 0, n&8 > 0
			g := newGate(setup, 1)
			g.state.Listening = listens
			g.add(elsewhere, Idle)
			if full {
				g.others(8)
			}
			v := g.judgeTie(t, setup, expected, crowded)
			if !expected {
				require.Equal(t, Verdict[session]{Drop: Unknown, Seen: true}, v, "%s: no answer", setup)
				continue
			}
			if crowded || full {
				require.Equal(t, CookieSent, v.Note, "%s, %d", setup, n)
				require.Equal(t, Done, v.Do)
				h := wire.DecodeHeader(v.Answer.Content[:])
				c, _ := h.Signal()
				require.Equal(t, wire.Cookie, c.Code)
				v = g.judgeTie(t, setup, true, crowded, signal(wire.Cookie, c.SN, c.TS))
				require.True(t, v.Validated)
			}
			require.Equal(t, Open, v.Do, "%s, %d", setup, n)
		}
	}
	tie := signal(wire.Tiebreak, 5, 6)
	g := newGate("plain", 1)
	g.state.Listening = false
	packet := packetOf(hello, put(info(false)), tie)
	first := g.Read(keyOf(from), Plain, &protect.Packet{Data: packet}, len(packet))
	first.Expected = true
	v := g.Judge(&first, g.state, g.now)
	require.Equal(t, Open, v.Do)
	require.False(t, v.Offers || v.Validated)
	alone := g.Read(keyOf(from), Plain, &protect.Packet{Data: tie}, len(tie))
	require.Equal(t, Verdict[session]{Drop: Unknown}, g.Judge(&alone, g.state, g.now), "it opens nothing")
}

// judgeTie judges a HELLO with TIEBREAKER and what else it has.
func (g *gate) judgeTie(t *testing.T, setup string, expected, crowded bool, more ...[]byte) Verdict[session] {
	all := append([][]byte{hello, put(info(setup == "tls")), signal(wire.Tiebreak, 5, 6)}, more...)
	packet, kind := packetOf(all...), Plain
	if setup == "tls" {
		packet, kind = initial(0, all...), Clear
	}
	p := &protect.Packet{Data: packet}
	first := g.Read(keyOf(from), kind, p, len(packet))
	require.Equal(t, wire.Signal{Code: wire.Tiebreak, SN: 5, TS: 6}, first.Tie)
	first.Expected, first.Crowded = expected, expected && crowded
	v := g.Judge(&first, g.state, g.now)
	if v.Do == Unseal {
		why, ok := first.Unseal()
		require.True(t, ok, why)
		v = g.Judge(&first, g.state, g.now)
		require.NotNil(t, first.Keys)
	}
	return v
}
