package e2e

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/congestion"
	"github.com/stretchr/testify/require"
)

// countingControl counts the calls of a controller.
type countingControl struct {
	congestion.Control
	acks atomic.Int32
}

func (c *countingControl) OnAck(s *congestion.State) {
	c.acks.Add(1)
	c.Control.OnAck(s)
}

// The controller that was set works at once, and again behind another path.
func TestSetCongestionControl(t *testing.T) {
	inWorld(t, 2, clean, func(t *testing.T, w *world) {
		a, b, _, pc := w.movable(&kcp.Config{Cipher: testAEAD(t)})
		var made []*countingControl
		require.NoError(t, b.SetCongestionControl(func() congestion.Control {
			made = append(made, &countingControl{Control: congestion.NewCubic()})
			return made[len(made)-1]
		}))
		w.move(b, a, 1, 100_000)
		time.Sleep(time.Second) // until all is acknowledged
		require.Len(t, made, 1)
		require.Positive(t, made[0].acks.Load())
		require.NoError(t, pc.Rebind("10.0.0.3:6000"))
		w.move(a, b, 2, 100_000)
		w.move(b, a, 3, 100_000)
		time.Sleep(time.Second)
		require.Len(t, made, 2)
		old := made[1].acks.Load()
		require.Positive(t, old)
		require.NoError(t, b.SetCongestionControl(nil))
		w.move(b, a, 4, 100_000)
		require.Equal(t, old, made[1].acks.Load())
		require.Len(t, made, 2)
	})
}

// SetMessageMode concerns what is written from then on. Waiting data keeps its
// boundaries.
func TestSetMessageMode(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&kcp.Config{MessageMode: true, SendWindow: 1}, nil)
		w.say(a, "first") // fills the window, so the rest waits
		w.say(a, "second")
		require.NoError(t, a.SetMessageMode(false))
		w.say(a, "thi")
		w.say(a, "rd")
		require.ErrorIs(t, a.WriteMessage(nil, nil), errors.ErrUnsupported)
		require.NoError(t, a.SetMessageMode(true))
		require.NoError(t, a.WriteMessage([]byte("fourth"), nil))
		require.NoError(t, a.SetMessageMode(true)) // no change
		for _, want := range []string{"first", "second", "third", "fourth"} {
			readsMessage(t, b, []byte(want))
		}
	})
}
