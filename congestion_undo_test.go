package kcp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/netsim"
)

// recoveries is no control that writes down what it is told of recoveries.
type recoveries struct {
	noControl
	told []bool
}

func (c *recoveries) OnRecovered(_ *CongestionState, spurious bool) {
	c.told = append(c.told, spurious)
}

// The controller hears of the end of a recovery, and whether it was for nothing:
// only where every segment has come with its first transmission.
func TestOnRecovered(t *testing.T) {
	for _, test := range []struct {
		name string
		late uint32 // after the repair
		acks [][]byte
		want []bool
	}{
		{"first", 5, [][]byte{ack(1, 1080, 1)}, []bool{true}},
		{"second", 80, [][]byte{ack(1, 1160, 1)}, []bool{false}},
		{"una, too soon for the second", 5, [][]byte{segment(cmdWins, 0, 0, 0, 3, "")}, []bool{true}},
		{"una, either", 85, [][]byte{segment(cmdWins, 0, 0, 0, 3, "")}, []bool{false}},
		{"una, and the first", 85, [][]byte{ack(1, 1080, 3)}, []bool{true}},
		{"una, and the second", 85, [][]byte{ack(1, 1160, 3)}, []bool{false}},
		{"nothing of it", 5, [][]byte{ack(3, 1080, 1)}, nil},
	} {
		cc := new(recoveries)
		h := recoveryHarness(t, 1, Extensions{EarlyRetransmit: true, SendOrder: true})
		require.NoError(t, h.k.SetMinRTO(1000))
		h.k.SetCongestionControl(cc)
		h.later(80)
		h.input(ack(2, 1080, 1))
		h.advance(0)
		h.want(`push 1 frg=0 "a"`)
		h.later(test.late)
		h.input(test.acks...)
		require.Equal(t, test.want, cc.told, test.name)
	}
}

// A needless repair leaves no trace in the window; a needed one does.
func TestControllersUndo(t *testing.T) {
	for name, control := range map[string]CongestionControl{"cubic": NewCubic(), "reference": NewReferenceControl()} {
		for _, spurious := range []bool{false, true} {
			c := newCourse(t, control, courseRate, 40*time.Millisecond, 1, 0)
			c.run(300 * time.Millisecond)
			s := c.a.congestionState()
			s.LostSent = s.Micros
			before := control.Window()
			control.OnFastRetransmit(s)
			s.LostSent++
			control.OnTimeout(s)
			require.Less(t, control.Window(), before, name)
			control.(RecoveryControl).OnRecovered(s, spurious)
			require.Equal(t, spurious, control.Window() == before, name)
			control.OnTick(s)
			control.(RecoveryControl).OnRecovered(s, true) // nothing is left to undo
			require.Equal(t, spurious, control.Window() == before, name)
		}
	}
}

func TestBBRUndo(t *testing.T) {
	long(t)
	for _, spurious := range []bool{false, true} {
		b := NewBBR().(*bbrControl)
		c := newCourse(t, b, courseRate, 40*time.Millisecond, 1, 0)
		c.run(2 * time.Second)
		s := c.a.congestionState()
		hi, lo, bwLo, cwnd := b.inflightHi, b.inflightLo, b.bwLo, b.cwnd
		b.enter(bbrCruise, 1)
		b.OnPacketSent(s, SegmentInfo{Size: 1400, LostMicros: s.Micros})
		b.losses.lost, b.newRound = 1e6, true
		b.lowerBounds(s)
		require.Less(t, b.inflightLo, lo)
		require.Less(t, b.bwLo, bwLo)
		b.OnRecovered(s, spurious)
		require.Equal(t, spurious, b.inflightHi == hi && b.inflightLo == lo && b.bwLo == bwLo && b.cwnd >= cwnd)
	}

	// Startup goes on where only losses that were none have ended it.
	for _, spurious := range []bool{false, true} {
		b := NewBBR().(*bbrControl)
		c := newCourse(t, b, courseRate, 40*time.Millisecond, 1, 0)
		c.run(150 * time.Millisecond)
		require.Equal(t, bbrStartup, b.state)
		s := c.a.congestionState()
		b.OnPacketSent(s, SegmentInfo{Size: 1400, LostMicros: s.Micros})
		b.losses.lost = 1e6
		b.answerProbe(s)
		b.step(s)
		require.Equal(t, bbrDrain, b.state)
		b.OnRecovered(s, spurious)
		require.Equal(t, spurious, b.state == bbrStartup && !b.full)
	}
}

// What was done about real losses, be it only after the last of them was
// repaired, is not taken back because something else later was none.
func TestBBRUndoesNothingElse(t *testing.T) {
	long(t)
	b := NewBBR().(*bbrControl)
	c := newCourse(t, b, courseRate, 40*time.Millisecond, 1, 0)
	c.run(2 * time.Second)
	s := c.a.congestionState()
	b.enter(bbrCruise, 1)
	resend := func() { b.OnPacketSent(s, SegmentInfo{Size: 1400, LostMicros: s.Micros}) }
	resend()
	b.OnRecovered(s, false)
	b.losses.lost, b.newRound = 1e6, true
	b.lowerBounds(s)
	lo, bwLo := b.inflightLo, b.bwLo
	resend()
	b.OnRecovered(s, true)
	require.Equal(t, lo, b.inflightLo)
	require.Equal(t, bwLo, b.bwLo)
}

// Reordering, while it is found out what it is, costs CUBIC no window.
func TestCubicOnReorderedPath(t *testing.T) {
	long(t)
	for seed := range uint64(4) {
		c := newCourse(t, NewCubic(), courseRate, 80*time.Millisecond, 1, 0)
		c.cfg.Jitter, c.cfg.Reorder = 10*time.Millisecond, 0.05
		c.forward, c.back = netsim.NewLink(c.cfg, 2*seed), netsim.NewLink(c.cfg, 2*seed+1)
		require.Greater(t, c.run(2*time.Second), 0.7*courseRate, "seed %d", seed)
		require.Greater(t, c.run(5*time.Second), 0.9*courseRate, "seed %d", seed)
	}
}
