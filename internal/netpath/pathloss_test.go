package netpath

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/arqnet/kcp/stats"
)

func TestLossFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Packets that are lost", "256 packets", AskAfter},
		{"| Packets that are lost", "1 s", askEvery},
	})
}

// loss is Loss without the last interval.
func loss(s *Losses) (out, in [2]uint64) {
	o, i := s.Loss()
	return [2]uint64{o.Counted, o.Lost}, [2]uint64{i.Counted, i.Lost}
}

// Two ends tell each other, also when their counts come around.
func TestCounts(t *testing.T) {
	var none *Losses
	out, in := none.Loss()
	require.Zero(t, out)
	require.Zero(t, in)
	require.False(t, none.Heard())
	for _, step := range []uint64{100, math.MaxInt32 - 7} {
		var a, b Losses
		now, sent, lost := time.Duration(0), uint64(0), uint64(0)
		for range 10 { // a sends, of which a fifth is lost
			now += time.Second
			sent, lost = sent+step, lost+step/5
			told, missing := a.Ask(sent, now)
			b.Take(told, missing, false, sent-lost, now)
			told, missing = b.Answer(sent / 2)
			a.Take(told, missing, true, sent/2, now)
			out, in := loss(&a)
			require.Equal(t, [2]uint64{sent, lost}, out)
			require.Equal(t, [2]uint64{sent / 2, 0}, in)
			out, in = loss(&b)
			require.Equal(t, [2]uint64{sent, lost}, in)
			require.Zero(t, out[1])
			l, _ := a.Loss()
			require.Equal(t, stats.Loss{Counted: sent, Lost: lost, RecentCounted: step, RecentLost: step / 5}, l)
			require.InDelta(t, 0.2, l.RecentShare(), 0.01)
		}
	}
}

// Counts that come late or twice change nothing, nor do answers to no question.
func TestLateCounts(t *testing.T) {
	var s Losses
	s.Ask(100, time.Second)
	s.Take(50, 10, true, 40, time.Second)
	was := s
	for _, sent := range []uint32{50, 49, 0, 50 + 1<<31, math.MaxUint32} {
		s.Take(sent, 90, true, 0, 2*time.Second)
		require.Equal(t, was, s, sent)
	}
	s.Take(60, 90, true, 60, 2*time.Second)
	out, in := loss(&s)
	require.Equal(t, [2]uint64{100, 10}, out)
	require.Equal(t, [2]uint64{60, 10}, in, "what has come late stays lost")
}

// Whatever a peer tells, nothing wraps or falls, no more is lost than was counted, and no
// more of this end's packets than it has sent.
func TestFalseCounts(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	extremes := []uint32{0, 1, math.MaxInt32, math.MaxInt32 + 1, math.MaxUint32}
	number := func() uint32 {
		if random.IntN(2) == 0 {
			return extremes[random.IntN(len(extremes))]
		}
		return random.Uint32()
	}
	var s Losses
	now, sent, received := time.Duration(0), uint64(0), uint64(0)
	for range 10_000 {
		now += time.Duration(random.Int64N(int64(time.Second)))
		sent, received = sent+random.Uint64N(100), received+random.Uint64N(100)
		if random.IntN(2) == 0 {
			s.Ask(sent, now)
		}
		outBefore, inBefore := s.Loss()
		s.Take(number(), number(), random.IntN(2) == 0, received, now)
		out, in := s.Loss()
		require.LessOrEqual(t, out.Counted, sent)
		for _, l := range [][2]stats.Loss{{outBefore, out}, {inBefore, in}} {
			was, is := l[0], l[1]
			require.LessOrEqual(t, is.Lost, is.Counted)
			require.LessOrEqual(t, is.RecentLost, is.Lost)
			require.LessOrEqual(t, is.RecentCounted, is.Counted)
			require.GreaterOrEqual(t, is.Lost, was.Lost)
			require.GreaterOrEqual(t, is.Counted, was.Counted)
			require.Less(t, is.Counted-was.Counted, uint64(1<<31)+uint64(sent))
			require.True(t, is.Share() <= 1 && is.RecentShare() <= 1)
		}
	}
}
