package kcp

import (
	"testing"
	"testing/synctest"
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
	s.set(most*quantum, most*quantum/1000, 1000*quantum*turnCycle, 8<<20, true)
	for range sessions {
		c := new(turnTaker)
		c.path.sending.packet, c.path.sending.light = 1472/packetUnit, incastLeast
		s.takers = append(s.takers, c)
	}
	return s
}

// arrive has n segments of a session arrive.
func (s *turnStage) arrive(c *turnTaker, n int) {
	if g, ok := s.arrived(&c.Conn, n, s.now); ok {
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
	require.EqualValues(t, turnMost, s.takers[2].known.window)
	s.arrive(slow, 1)
	require.EqualValues(t, turnMost/2-1, slow.known.window, "its turn goes on")
	s.now = s.limit
	s.step()
	require.EqualValues(t, turnWaits, slow.path.sending.turn)
	require.EqualValues(t, turnMost/2-1, slow.known.window, "which its peer may still use")
	require.EqualValues(t, turnMost, s.takers[3].known.window)
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
	s.set(0, 0, 0, 8<<20, false)
	s.step()
	require.Empty(t, s.running)
	require.Empty(t, s.queue[s.next:])
	for i, c := range s.takers {
		require.EqualValues(t, turnNone, c.path.sending.turn)
		if i != 0 && i != 10 {
			require.Equal(t, grant{}, c.known)
		}
	}
	for _, c := range s.takers {
		s.set(1000*turnMost*2304, (1000*turnMost*2304)/1000, 1000*turnMost*2304*turnCycle, 8<<20, false)
		require.Equal(t, grant{window: turnMost}, s.equalGrant(turnWaiter{&c.Conn, 1472}), "if there is a budget")
	}
	_, ok := s.arrived(&s.takers[0].Conn, 1, s.now)
	require.False(t, ok)
}

// The quantum follows the rate and the number of senders, within bounds. Equal
// shares do if they are as large.
func TestTurnsQuantum(t *testing.T) {
	s := new(turns)
	s.set(8<<20, (8<<20)/1000, 400<<20, 8<<20, true)
	require.True(t, s.on)
	require.Equal(t, turnMost*2304, s.quantum)
	require.Equal(t, (8<<20)/s.quantum, s.most)
	require.Equal(t, turnLimit, s.limit)
	s.set(16<<20, (16<<20)/1000, 4<<20, 8<<20, true)
	require.False(t, s.on, "a share of the budget is as large")
	s.set(1<<20, (1<<20)/100_000, 400<<20, 8<<20, true)
	require.True(t, s.on)
	require.Equal(t, turnLeast*2304, s.quantum)
	s.set(1<<20, (1<<20)/1000, 1, 8<<20, true)
	require.Equal(t, incastEpoch, s.limit, "at most")
	s.set(1<<20, (1<<20)/1, 400<<20, 8<<20, true)
	require.False(t, s.on)
	s.set(0, 0, 400<<20, 8<<20, true)
	require.False(t, s.on, "there is no budget yet")
	s.set(1<<20, (1<<20)/1000, 400<<20, 8<<20, false)
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

// Sessions that have ended take no time of the others.
func TestTurnsOfEndedSessions(t *testing.T) {
	inWorld(t, 4, clean, func(w *world) {
		_, c, l := w.pair(nil, nil)
		turns := &l.ep.socket.shards[0].incast.turns
		turns.mu.Lock()
		turns.takeForEver(7)
		for range 100 {
			ended := &Conn{ep: l.ep}
			ended.closing.state = stateEnded
			turns.enqueueLocked(turnWaiter{ended, 1472})
		}
		turns.mu.Unlock()
		turns.advance(l.ep, 0)
		turns.mu.Lock()
		require.Empty(t, turns.running)
		require.Empty(t, turns.queue[turns.next:])

		turns.enqueueLocked(turnWaiter{c, 1472})
		turns.stepLocked(0)
		running := len(turns.running)
		turns.mu.Unlock()
		require.Equal(t, 1, running)
		c.Abort()
		synctest.Wait()
		turns.mu.Lock()
		running = len(turns.running)
		turns.mu.Unlock()
		require.Zero(t, running)
	})
}

// takeForEver has so many turns taken at once, which last for ever.
func (t *turns) takeForEver(most int) {
	t.on, t.most, t.quantum, t.limit, t.checkAt = true, most, turnMost*2304, time.Hour, time.Hour
}

// A session that waits for its turn at one socket is told another window if its
// packets arrive at another, also if they have no data.
func TestTurnsOfAnotherShard(t *testing.T) {
	inWorld(t, 5, clean, func(w *world) {
		a, c, l := w.pair(nil, nil)
		bothWays(t, a, c, content(1, 64), content(2, 64))
		time.Sleep(time.Second) // no ACK waits
		turns := &l.ep.socket.shards[0].incast.turns
		c.mu.Lock()
		defer c.mu.Unlock()
		turns.mu.Lock()
		turns.enqueueLocked(turnWaiter{c, 1472})
		turns.mu.Unlock()
		c.limitWindow(grant{shut: true})
		require.Zero(t, c.kcp.wndUnused())
		took := c.changeShard(0)
		require.True(t, took)
		require.Positive(t, c.kcp.wndUnused())
		require.True(t, c.kcp.windowReopened(), "the peer is told")
		require.Empty(t, turns.queue)
		require.False(t, c.changeShard(0))
	})
}
