package replylimit

import (
	"math/rand/v2"
	"testing"

	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/stretchr/testify/require"
)

// flood takes packets of n bytes until the limit stops them, and returns their number.
func flood(l *Limit, n int) (packets int) {
	for l.Take(n) {
		packets++
	}
	return packets
}

// Who does not answer gets three times what came, in bytes and in packets, whatever their
// sizes.
func TestUntilAnAnswer(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		var l Limit
		require.False(t, l.Take(0), "nothing has come")
		came, packets := 0, 0
		for range 1 + random.IntN(20) { // they come before anything is sent
			n := random.IntN(1500)
			l.Received(n)
			came += n
			packets++
		}
		sent, times := 0, 0
		for range 10_000 {
			if n := random.IntN(1 + random.IntN(3000)); l.Take(n) {
				sent += n
				times++
			}
		}
		require.LessOrEqual(t, sent, 3*came, "seed %d", seed)
		require.LessOrEqual(t, times, 3*packets, "seed %d", seed)
		require.True(t, sent == 3*came || times == 3*packets || 3*came-sent < 3000, "seed %d: it has got %d of %d", seed, sent, 3*came)
	}
}

// Empty packets are not free.
func TestEmptyPackets(t *testing.T) {
	var l Limit
	l.Received(1400)
	require.Equal(t, 3, flood(&l, 0))
	l = Limit{}
	l.Received(0)
	require.Zero(t, flood(&l, 1))
	require.Equal(t, 3, flood(&l, 0))
}

// Each answer doubles the window, from one packet of any size to 16 MiB. What comes
// without having been sent anything is no answer.
func TestWindowGrows(t *testing.T) {
	var l Limit
	l.Received(100)
	l.Received(100) // sent twice, perhaps
	require.Equal(t, 6, flood(&l, 100))
	window := FirstWindow
	for range 20 {
		l.Received(1)
		require.Equal(t, window/1024, flood(&l, 1024))
		window = min(2*window, MaxWindow)
	}
	for range 5 { // silence does not give back what was used
		require.Zero(t, flood(&l, 1))
	}
	l.Received(1)
	l.Received(1)
	l.Received(1)
	require.Equal(t, MaxWindow/1024, flood(&l, 1024), "windows do not add up")
	l.Received(0)
	require.Equal(t, MaxWindow/packetShare, flood(&l, 0), "nor is anything free later")
}

// A sender of forged answers gets no more for n packets than windows that double, and
// never more than the largest for each.
func TestForgedAnswers(t *testing.T) {
	var l Limit
	sent, most := 0, 3*1200
	l.Received(1200)
	for i := range 12 {
		sent += 1200 * flood(&l, 1200)
		require.LessOrEqual(t, sent, most, "after %d packets", i+1)
		most += min(FirstWindow<<i, MaxWindow)
		l.Received(1200)
	}
}

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Tunnel's UDP: who has not answered", "64 KiB", FirstWindow},
		{"| Tunnel's UDP: who has not answered", "16 MiB", MaxWindow},
	})
}
