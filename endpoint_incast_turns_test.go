package kcp

import (
	"testing"
	"time"

	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// turnTaker is a session of which packets arrive, and the window that its peer
// knows.
type turnTaker struct {
	Conn
	known grant
	turns int
}

// turnStage is turns, and the sessions that take them.
type turnStage struct {
	turns
	takers []*turnTaker
	now    time.Duration
}

// newTurnStage returns a stage on which so many turns run at once.
func newTurnStage(sessions, most int) *turnStage {
	s := new(turnStage)
	const quantum = turnMost * 2304
	s.set(most*quantum, 1000, 1000*quantum*turnCycle, 8<<20, true)
	for range sessions {
		c := new(turnTaker)
		c.path.sending.packet, c.path.sending.light = 1472/packetUnit, incastLeast
		s.takers = append(s.takers, c)
	}
	return s
}

// arrive has n segments of a session arrive.
func (s *turnStage) arrive(c *turnTaker, n int) {
	if g, ok := s.arrived(&c.Conn, n); ok {
		c.known = g
	}
}

// step tells the sessions what has changed.
func (s *turnStage) step() {
	for _, n := range s.stepLocked(s.now) {
		for _, c := range s.takers {
			if &c.Conn == n.conn {
				c.known = n.grant
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
		require.Equal(t, grant{shut: true}, c.known)
	}
	for round := range 1000 {
		s.step()
		require.LessOrEqual(t, len(s.running), 7)
		open := 0
		for _, c := range s.takers {
			require.Equal(t, c.known.shut, c.path.sending.turn == turnWaits)
			if c.known.shut {
				continue
			}
			open++
			require.LessOrEqual(t, c.known.window, uint32(turnMost))
			before := c.known.window
			n := 1 + round%20
			s.arrive(c, n)
			if n < int(before) {
				require.Equal(t, grant{window: before - uint32(n)}, c.known, "its right edge moves")
			} else {
				require.Equal(t, grant{shut: true}, c.known)
			}
		}
		require.Equal(t, 7, open)
	}
	for _, c := range s.takers {
		require.InDelta(t, s.takers[0].turns, c.turns, 5)
		require.Greater(t, c.turns, 10)
	}
}

// A turn that lasts too long gives way. The session waits for another if it has
// sent something, else its peer may send what it has, and the same after that.
func TestTurnsExpire(t *testing.T) {
	s := newTurnStage(4, 2)
	for _, c := range s.takers {
		s.arrive(c, 1)
	}
	s.step()
	slow, silent := s.takers[0], s.takers[1]
	s.arrive(slow, 1)
	s.now += s.limit
	s.step()
	require.EqualValues(t, turnWaits, slow.path.sending.turn)
	require.EqualValues(t, turnMost-1, slow.known.window, "which its peer may still use")
	require.EqualValues(t, turnMost, s.takers[2].known.window)
	require.Equal(t, grant{window: incastLeast}, silent.known)
	require.EqualValues(t, turnNone, silent.path.sending.turn)
	silent.path.sending.light = 1
	s.arrive(silent, 1)
	require.Equal(t, grant{window: incastLeast}, silent.known, "a peer that sends little takes no turns")
}

// When no turns are taken any more, all learn it, and none is kept.
func TestTurnsEnd(t *testing.T) {
	s := newTurnStage(20, 4)
	for _, c := range s.takers {
		s.arrive(c, 1)
	}
	s.step()
	s.forget(&s.takers[0].Conn)  // it has a turn
	s.forget(&s.takers[10].Conn) // it waits
	s.forget(&s.takers[10].Conn)
	require.Len(t, s.running, 3)
	require.Len(t, s.queue[s.next:], 15)
	s.set(0, 1, 0, 8<<20, false)
	s.step()
	require.Empty(t, s.running)
	require.Empty(t, s.queue[s.next:])
	for i, c := range s.takers {
		require.EqualValues(t, turnNone, c.path.sending.turn)
		if i != 0 && i != 10 {
			require.Equal(t, grant{}, c.known)
		}
	}
	_, ok := s.arrived(&s.takers[0].Conn, 1)
	require.False(t, ok)
}

// The quantum follows the rate and the number of senders, within bounds. Equal
// shares do if they are as large.
func TestTurnsQuantum(t *testing.T) {
	s := new(turns)
	s.set(8<<20, 1000, 400<<20, 8<<20, true)
	require.True(t, s.on)
	require.Equal(t, turnMost*2304, s.quantum)
	require.Equal(t, (8<<20)/s.quantum, s.most)
	require.Equal(t, turnLimit, s.limit)
	s.set(16<<20, 1000, 4<<20, 8<<20, true)
	require.False(t, s.on, "a share of the budget is as large")
	s.set(1<<20, 100_000, 400<<20, 8<<20, true)
	require.True(t, s.on)
	require.Equal(t, turnLeast*2304, s.quantum)
	s.set(1<<20, 1000, 1, 8<<20, true)
	require.Equal(t, incastEpoch, s.limit, "at most")
	s.set(1<<20, 1, 400<<20, 8<<20, true)
	require.False(t, s.on)
	s.set(1<<20, 1000, 400<<20, 8<<20, false)
	require.False(t, s.on)
}

// News of a turn may be lost.
func TestTurnsSurviveLoss(t *testing.T) {
	long(t)
	inWorld(t, 3, netsim.LinkConfig{Delay: 2 * time.Millisecond, Loss: 0.05}, func(w *world) {
		c := newCrowd(w, nil, 60*(5<<10), 50*time.Microsecond)
		go c.serve()
		for range 60 {
			c.join(nil)
		}
		time.Sleep(3 * time.Second)
		turns := &c.listener.ep.socket.shards[0].incast.turns
		turns.mu.Lock()
		on := turns.on
		turns.mu.Unlock()
		require.True(t, on)
		r := c.measure(2 * time.Second)
		require.Greater(t, r.slowest, 0.3*r.mean)
		require.Greater(t, r.mean*60, 2*20000*1448*0.7)
		require.Zero(t, c.failed.Load())
	})
}
