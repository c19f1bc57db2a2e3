package kcp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/netsim"
)

// recoveries is no control that writes down what it is told of recoveries.
type recoveries struct {
	congestion.Control
	told []bool
}

func (c *recoveries) OnRecovered(_ *congestion.State, spurious bool) {
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
		cc := &recoveries{Control: congestion.NewNone()}
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
	for name, control := range map[string]congestion.Control{"cubic": congestion.NewCubic(), "reference": congestion.NewReference()} {
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
			control.(congestion.Undoer).OnRecovered(s, spurious)
			require.Equal(t, spurious, control.Window() == before, name)
			control.OnTick(s)
			control.(congestion.Undoer).OnRecovered(s, true) // nothing is left to undo
			require.Equal(t, spurious, control.Window() == before, name)
		}
	}
}

// Reordering, while it is found out what it is, costs CUBIC no window.
func TestCubicOnReorderedPath(t *testing.T) {
	t.Parallel()
	long(t)
	for seed := range uint64(4) {
		c := newCourse(t, congestion.NewCubic(), courseRate, 80*time.Millisecond, 1, 0)
		c.cfg.Jitter, c.cfg.Reorder = 10*time.Millisecond, 0.05
		c.forward, c.back = netsim.NewLink(c.cfg, 2*seed), netsim.NewLink(c.cfg, 2*seed+1)
		require.Greater(t, c.run(2*time.Second), 0.7*courseRate, "seed %d", seed)
		require.Greater(t, c.run(5*time.Second), 0.9*courseRate, "seed %d", seed)
	}
}
