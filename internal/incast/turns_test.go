package incast

import (
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/stretchr/testify/require"
)

// turnTaker is a session of which packets arrive, and the window that its peer
// knows.
type turnTaker struct {
	sending Sender
	known   Grant
	turns   int
}

// turnStage is turns, and the sessions that take them.
type turnStage struct {
	Turns[turnTaker]
	takers []*turnTaker
	now    time.Duration
}

// newTurnStage returns a stage on which so many turns run at once.
func newTurnStage(sessions, most int) *turnStage {
	s := new(turnStage)
	s.Init(func(c *turnTaker) *Sender { return &c.sending }, nil, func() {})
	const quantum = turnMost * 2304
	s.Set(most*quantum, most*quantum/1000, 1000*quantum*turnCycle, 8<<20, true)
	for range sessions {
		c := new(turnTaker)
		c.sending.packet, c.sending.Light = 1472/packetUnit, Least
		s.takers = append(s.takers, c)
	}
	return s
}

// arrive has n segments of a session arrive.
func (s *turnStage) arrive(c *turnTaker, n int) {
	if g, ok := s.Arrived(c, n, s.now); ok {
		c.known = g
	}
}

// step tells the sessions what has changed.
func (s *turnStage) step() {
	for _, n := range s.stepLocked(s.now) {
		for _, c := range s.takers {
			if c == n.of {
				c.known = n.Grant
				c.turns++
			}
		}
	}
}

// Sessions take turns in order. Each may send a quantum in its turn and nothing
// between, and no more run at once than there is room for.
func TestTurns(t *testing.T) {
	s := newTurnStage(50, 7)
	require.True(t, s.on)
	for _, c := range s.takers {
		s.arrive(c, 1)
		require.Equal(t, Grant{Shut: true}, c.known)
	}
	for round := range 1000 {
		s.step()
		require.LessOrEqual(t, len(s.running), 7)
		open := 0
		for _, c := range s.takers {
			require.Equal(t, c.known.Shut, c.sending.turn == turnWaits)
			if c.known.Shut {
				continue
			}
			open++
			require.LessOrEqual(t, c.known.Window, uint32(turnMost))
			before := c.known.Window
			n := 1 + round%20
			s.arrive(c, n)
			if n < int(before) {
				require.Equal(t, Grant{Window: before - uint32(n)}, c.known, "its right edge moves")
			} else {
				require.Equal(t, Grant{Shut: true}, c.known)
			}
		}
		require.Equal(t, 7, open)
	}
	for _, c := range s.takers {
		require.InDelta(t, s.takers[0].turns, c.turns, 5)
		require.Greater(t, c.turns, 10)
	}
}

// A turn that lasts too long gives way, and one in which nothing more arrives. The
// session waits for another if it has used half of its turn, else its peer may send
// a little.
func TestTurnsExpire(t *testing.T) {
	s := newTurnStage(4, 2)
	for _, c := range s.takers {
		s.arrive(c, 1)
	}
	s.step()
	slow, silent := s.takers[0], s.takers[1]
	s.now += s.limit / 2
	s.arrive(slow, turnMost/2)
	s.now = s.quiet()
	s.step()
	require.EqualValues(t, turnMost, s.takers[2].known.Window)
	s.arrive(slow, 1)
	require.EqualValues(t, turnMost/2-1, slow.known.Window, "its turn goes on")
	s.now = s.limit
	s.step()
	require.EqualValues(t, turnWaits, slow.sending.turn)
	require.EqualValues(t, turnMost/2-1, slow.known.Window, "which its peer may still use")
	require.EqualValues(t, turnMost, s.takers[3].known.Window)
	require.Equal(t, Grant{Window: Least}, silent.known)
	require.EqualValues(t, turnNone, silent.sending.turn)
	silent.sending.Light = 1
	s.arrive(silent, 1)
	require.Equal(t, Grant{Window: Least}, silent.known, "a peer that sends little takes no turns")
}

// When no turns are taken any more, all learn it, and none is kept.
func TestTurnsEnd(t *testing.T) {
	s := newTurnStage(20, 4)
	for _, c := range s.takers {
		s.arrive(c, 1)
	}
	s.step()
	s.Forget(s.takers[0])  // it has a turn
	s.Forget(s.takers[10]) // it waits
	s.Forget(s.takers[10])
	require.Len(t, s.running, 3)
	require.Len(t, s.queue[s.next:], 15)
	s.Set(0, 0, 0, 8<<20, false)
	s.step()
	require.Empty(t, s.running)
	require.Empty(t, s.queue[s.next:])
	for i, c := range s.takers {
		require.EqualValues(t, turnNone, c.sending.turn)
		if i != 0 && i != 10 {
			require.Equal(t, Grant{}, c.known)
		}
	}
	for _, c := range s.takers {
		s.Set(1000*turnMost*2304, (1000*turnMost*2304)/1000, 1000*turnMost*2304*turnCycle, 8<<20, false)
		require.Equal(t, Grant{Window: turnMost}, s.equalGrant(waiter[turnTaker]{c, 1472}), "if there is a budget")
	}
	_, ok := s.Arrived(s.takers[0], 1, s.now)
	require.False(t, ok)
}

// The quantum follows the rate and the number of senders, within bounds. Equal
// shares do if they are as large.
func TestTurnsQuantum(t *testing.T) {
	s := new(Turns[turnTaker])
	s.Set(8<<20, (8<<20)/1000, 400<<20, 8<<20, true)
	require.True(t, s.on)
	require.Equal(t, turnMost*2304, s.quantum)
	require.Equal(t, (8<<20)/s.quantum, s.most)
	require.Equal(t, 25*time.Millisecond, s.limit)
	s.Set(16<<20, (16<<20)/1000, 4<<20, 8<<20, true)
	require.False(t, s.on, "a share of the budget is as large")
	s.Set(1<<20, (1<<20)/100_000, 400<<20, 8<<20, true)
	require.True(t, s.on)
	require.Equal(t, turnLeast*2304, s.quantum)
	s.Set(1<<20, (1<<20)/1000, 1, 8<<20, true)
	require.Equal(t, Epoch, s.limit, "at most")
	s.Set(1<<20, (1<<20)/1, 400<<20, 8<<20, true)
	require.False(t, s.on)
	s.Set(0, 0, 400<<20, 8<<20, true)
	require.False(t, s.on, "there is no budget yet")
	s.Set(1<<20, (1<<20)/1000, 400<<20, 8<<20, false)
	require.False(t, s.on)
}

// Sessions that have ended take no time of the others.
func TestEndedSessionsTakeNoTurns(t *testing.T) {
	var turns Turns[turnTaker]
	told := 0
	turns.Init(func(c *turnTaker) *Sender { return &c.sending }, func(c *turnTaker, _ Grant, _ time.Duration) bool {
		told++
		turns.Leave(c)
		return false
	}, func() {})
	turns.Set(7*turnMost*2304, turnMost*2304/1000, 1<<30, 8<<20, true)
	for range 100 {
		c := &turnTaker{sending: Sender{Light: Least}}
		g, ok := turns.Arrived(c, 1, 0)
		require.True(t, ok)
		require.Equal(t, Grant{Shut: true}, g)
	}
	turns.Advance(0)
	require.Equal(t, 100, told)
	require.Empty(t, turns.running)
	require.Empty(t, turns.queue[turns.next:])
}

// The constants of the package are the figures that RULES.md says.
func TestRuleFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Incast: once the socket's", "10/16", high16 / 16.},
		{"| Incast: once", "7/16", low16 / 16.},
		{"| Incast: once", "20 ms", stepTime},
		{"| Incast: shares", "500 ms", Epoch},
		{"| Incast: the window", "170 µs", standingTime},
		{"| Incast: the window", "128 KiB", standingLeast},
		{"| Incast: who has sent", "16 segments", Least},
		{"| Incast: who has sent", "64 if", firstMost},
		{"| Incast: if shares", "4 to 64 full", turnLeast},
		{"| Incast: if shares", "64 full", turnMost},
		{"| Incast: if shares", "100 ms", Epoch / turnCycle},
		{"| Incast: if shares", "25 ms", turnLimit},
		{"| Incast: if shares", "3 times", turnDrains},
		{"| Incast: if shares", "16 segments", Least},
		{"| Incast: if shares", "500 ms", Epoch},
	})
}
