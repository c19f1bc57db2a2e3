package admission

import (
	"testing"

	"github.com/arqnet/kcp/internal/handshake"
	"github.com/arqnet/kcp/internal/protect"
	"github.com/stretchr/testify/require"
)

// A HELLO with TIEBREAKER opens a session only if it is expected, and then whether the
// endpoint listens or not, and however many sessions it has. It is never refused. Beside
// another one it needs a cookie.
func TestJudgeSimultaneousOpen(t *testing.T) {
	t.Parallel()
	tie := signal(handshake.CodeTie, 5, 6)
	for _, wire := range wires {
		for _, listens := range []bool{false, true} {
			for _, expected := range []bool{false, true} {
				for _, crowded := range []bool{false, true} {
					g := newGate(wire, 1)
					g.state.Listening = listens
					g.others(8)
					packet := packetOf(hello, put(info(false)), tie)
					kind := Plain
					if wire == "tls" {
						packet, kind = initial(0, hello, put(info(true)), tie), Clear
					}
					p := &protect.Packet{Data: packet}
					first := g.Read(keyOf(from), kind, p, len(packet))
					require.Equal(t, handshake.Signal{Code: handshake.CodeTie, SN: 5, TS: 6}, first.Tie)
					first.Expected, first.Crowded = expected, expected && crowded
					g.Cookies.Random = g.Random
					v := g.Judge(&first, g.state, g.now)
					if v.Do == Unseal {
						why, ok := first.Unseal()
						require.True(t, ok, why)
						v = g.Judge(&first, g.state, g.now)
					}
					switch {
					case !expected:
						require.Equal(t, Verdict[session]{Drop: Unknown, Seen: true}, v, "%s: no answer", wire)
					case crowded, g.Len() >= (g.MaxSessions+1)/2:
						require.Equal(t, CookieSent, v.Note)
						require.Equal(t, Done, v.Do)
					default:
						require.Equal(t, Open, v.Do)
					}
				}
			}
		}
	}
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
