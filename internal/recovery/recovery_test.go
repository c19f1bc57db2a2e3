package recovery

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/container"
	"github.com/arqnet/kcp/internal/rulebook"
)

// Without an acknowledgement four segments a round trip may be retransmitted, and
// two more for each one acknowledged.
func TestResendCredit(t *testing.T) {
	for _, round := range []uint32{20, 40, 100} {
		var c Credit
		c.Refill(0, round)
		require.Zero(t, c.Left)
		c.Refill(container.Serial(round/4), round)
		require.Equal(t, 1, c.Left, "after a quarter of %d ms", round)
		c.Refill(container.Serial(10*round), round)
		require.Equal(t, 4, c.Left, "and no more than 4, however long it takes")
		c.Left = 0
		require.Equal(t, (round+3)/4, c.Wait(container.Serial(10*round), round))
		c.Earn(3)
		require.Equal(t, 3, c.Left)
	}
}

// The reordering window is a quarter of a round trip, grows by as much at most once a
// round trip, up to a whole one, and is halved after 16 round trips without.
func TestReorderingWindow(t *testing.T) {
	const srtt = 100
	var r Reordering
	now := container.Serial(1<<32 - 300) // the clock comes around
	require.EqualValues(t, 25, r.Window(srtt))
	r.Found(false, now, srtt)
	require.EqualValues(t, 25, r.Window(srtt), "it was a time-out that was spurious")
	require.False(t, r.Seen())
	for _, want := range []uint32{50, 75, 100, 100} {
		r.Found(true, now, srtt)
		require.EqualValues(t, want, r.Window(srtt))
		r.Found(true, now+99, srtt)
		require.EqualValues(t, want, r.Window(srtt), "within a round trip")
		now += 100
	}
	require.True(t, r.Seen())
	now-- // when it was found last
	r.Decay(now+1600, srtt)
	require.EqualValues(t, 100, r.Window(srtt))
	r.Decay(now+1601, srtt)
	require.EqualValues(t, 50, r.Window(srtt))
	r.Decay(now+1602, srtt)
	require.EqualValues(t, 50, r.Window(srtt))
	r.Decay(now+3202, srtt)
	require.EqualValues(t, 25, r.Window(srtt))
}

// Reordering dominates once six more retransmissions were spurious than genuine, of
// twelve at most.
func TestReorderingDominates(t *testing.T) {
	var r Reordering
	r.Genuine()
	for i := range 20 {
		require.Equal(t, i >= 6, r.Dominates())
		r.Found(false, 0, 100)
	}
	for i := range 8 {
		require.Equal(t, i < 7, r.Dominates(), "%d genuine ones", i)
		r.Genuine()
	}
}

// An episode ends when all that was declared lost is acknowledged. It was spurious if no
// retransmission was necessary; what is ambiguous counts as genuine, unless the same input
// has only ACKs of what had left before.
func TestEpisode(t *testing.T) {
	for name, test := range map[string]struct {
		acked    func(e *Episode)
		spurious bool
	}{
		"spurious":  {func(e *Episode) { e.Count(true); e.Spurious++ }, true},
		"genuine":   {func(e *Episode) { e.Count(true); e.Count(false) }, false},
		"ambiguous": {func(e *Episode) { e.Count(true); e.Ambiguous++ }, false},
		"resolved":  {func(e *Episode) { e.Count(true); e.Ambiguous++; e.Resolve(true) }, true},
		"before":    {func(e *Episode) { e.Ambiguous += 2; e.Echoed(99) }, true},
		"after":     {func(e *Episode) { e.Ambiguous += 2; e.Echoed(99); e.Echoed(100) }, false},
		"long ago":  {func(e *Episode) { e.Echoed(99); e.Ambiguous += 2 }, false},
	} {
		e := Episode{Lost: 2, since: 100}
		e.Resolve(true) // nothing is ambiguous
		_, ok := e.End()
		require.False(t, ok, name)
		test.acked(&e)
		spurious, ok := e.End()
		require.True(t, ok, name)
		require.Equal(t, test.spurious, spurious, name)
		require.Equal(t, Episode{}, e)
	}
}

// The last eight retransmissions are remembered, each until an ACK of its segment comes.
func TestRetransmissions(t *testing.T) {
	var m Retransmissions
	require.Zero(t, m.Open)
	for sn := range container.Serial(10) {
		m.Remember(Retransmission{SN: sn, TS: sn + 100})
	}
	require.Nil(t, m.Acked(1), "the oldest have made room")
	require.EqualValues(t, 102, m.Acked(2).TS)
	require.Nil(t, m.Acked(2))
	m.Remember(Retransmission{SN: 9, TS: 7})
	first, second := m.Acked(9), m.Acked(9)
	require.ElementsMatch(t, []container.Serial{7, 109}, []container.Serial{first.TS, second.TS})
	require.Nil(t, m.Acked(9))
	for sn := range container.Serial(10) {
		m.Acked(sn)
	}
	require.Zero(t, m.Open)
}

// An outage begins after a silence of two time-outs. After it what was in flight leaves
// again, 16 segments at first, and two for each one acknowledged.
func TestOutageEnds(t *testing.T) {
	var o Outage
	now := container.Serial(1<<32 - 100)
	o.Alive(now, 0, 0, 0)
	o.Detect(now+399, 200, 200)
	require.False(t, o.On)
	o.Detect(now+400, 100, 500)
	require.False(t, o.On, "not before the first probe would leave")
	o.Detect(now+400, 200, 200)
	require.True(t, o.On)
	require.Equal(t, now+600, o.ProbeAt)
	una := container.Serial(1<<32 - 10)
	take := func() (sent []container.Serial) {
		for sn, ok := o.Next(); ok; sn, ok = o.Next() {
			if sn%3 != 1 { // the others have arrived
				sent = append(sent, sn)
				o.Resent()
			}
		}
		return sent
	}
	require.Empty(t, take())
	o.Alive(now+700, una, una+100, 0)
	require.False(t, o.On)
	require.NotEqual(t, o.From, o.End)
	sent := take()
	require.Len(t, sent, 16)
	require.Equal(t, una, sent[0])
	last := sent[15]
	o.Alive(now+701, una, una+100, 3)
	sent = take()
	require.Len(t, sent, 6)
	require.Less(t, sent[0]-last, container.Serial(3))
	o.Alive(now+702, una+99, una+100, 1)
	require.LessOrEqual(t, len(take()), 1, "the others are acknowledged")
	require.Equal(t, o.From, o.End)
	o.Alive(now+703, una+100, una+200, 100)
	require.Empty(t, take(), "what is sent later")
}

// A round trip is at least minRound, and at most the time-out. Before the first sample it
// is the time-out.
func TestRound(t *testing.T) {
	for _, test := range []struct {
		srtt      int32
		rto, want uint32
	}{{0, 200, 200}, {0, 5, minRound}, {1, 200, minRound}, {50, 200, 50}, {50, 30, 30}} {
		require.Equal(t, test.want, new(Credit).Round(new(Outage), test.srtt, test.rto), "%+v", test)
	}
}

// What is lost counts in its episode once, and lets the reordering window shrink.
func TestLost(t *testing.T) {
	s := State{Reordering: Reordering{mult: 2, persistUntil: 100}}
	s.Lost(100, 10, true)
	require.Equal(t, 1, s.Episode.Lost)
	require.EqualValues(t, 2, s.Reordering.mult)
	s.Lost(101, 10, false)
	require.Equal(t, 1, s.Episode.Lost)
	require.EqualValues(t, 1, s.Reordering.mult)
}

// A segment that congestion control allows does not use up the credit.
func TestSpend(t *testing.T) {
	c := Credit{Left: 2}
	c.Spend(true)
	require.Equal(t, 2, int(c.Left))
	c.Spend(false)
	require.Equal(t, 1, int(c.Left))
}

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Reordering window", "srtt/4", windowFraction},
		{"| Reordering window", "3 times", maxMult},
		{"| Reordering window", "6 more", leastSpurious},
		{"| Reordering window", "12 counted", mostSpurious},
		{"| Reordering window", "16 round trips", persistRounds},
		{"| Spurious retransmission", "8 segments", memory},
		{"| Tail of a", "16 in flight", MostOverdue},
		{"| Tail of a", "5 ms", overdueMargin * time.Millisecond},
		{"| Tail of a", "8 oldest", OverdueReach},
		{"| What is lost", "1 segment for each one acknowledged", ResendGrowth},
		{"| What is lost", "4 a round trip", FreeResends},
		{"| What is lost", "64 in reserve", MaxResendCredit},
		{"| Outage", "16 segments", OutageFirst},
		{"| Outage", "2 for each one", OutageGrowth},
		{"| Copies of a retransmission", "2, in separate", SpareCopies},
		{"| Copies of a retransmission", "1/2 of cwnd", 1. / SpareShare},
	})
}

// While nothing arrives the credit for retransmissions comes slower and slower.
func TestCreditInSilence(t *testing.T) {
	var c Credit
	var o Outage
	o.Alive(1000, 0, 0, 0)
	before, waits := container.Serial(1000), []int32{}
	c.Refill(before, 100)
	c.Left = 0
	for now := before; now < 31_000; now++ {
		if c.Refill(now, c.Round(&o, 100, 200)); c.Left > 0 {
			waits = append(waits, now.Diff(before))
			before, c.Left = now, 0
		}
	}
	require.IsIncreasing(t, waits[6:20])
	require.EqualValues(t, mostRound/FreeResends, waits[len(waits)-1])
	o.Alive(31_000, 0, 0, 0)
	require.EqualValues(t, 100, c.Round(&o, 100, 200))
	require.EqualValues(t, mostRound, c.Round(&o, 0, 1<<32-1))
}
