package e2e

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/congestion"
	"github.com/stretchr/testify/require"
)

// The send window bounds what is in flight at once, and lets waiting data go when
// it grows.
func TestSetSendWindow(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&kcp.Config{CongestionControl: congestion.NewNone}, nil)
		require.NoError(t, a.SetWindow(3, 0))
		_, err := a.Write(content(1, 50_000))
		require.NoError(t, err)
		require.Equal(t, 3, a.Stats().InFlight)
		require.NoError(t, a.SetWindow(20, 0))
		require.Equal(t, 20, a.Stats().InFlight)
		require.NoError(t, a.SetWindow(0, 500))
		require.Equal(t, 20, a.Stats().InFlight)
		receive(t, b, content(1, 50_000))
	})
}

// The controller that was set works at once, and again behind another path.
func TestSetCongestionControl(t *testing.T) {
	inWorld(t, 2, clean, func(t *testing.T, w *world) {
		cfg := &kcp.Config{Cipher: testAEAD(t)}
		a, b, _, pc := w.movable(cfg)
		var made []*countingControl
		set := func() congestion.Control {
			made = append(made, &countingControl{Control: congestion.NewCubic()})
			return made[len(made)-1]
		}
		require.NoError(t, b.SetCongestionControl(set))
		w.move(b, a, 1, 100_000)
		time.Sleep(time.Second) // until all is acknowledged
		require.Len(t, made, 1)
		require.Positive(t, made[0].acks.Load())
		require.NoError(t, pc.Rebind("10.0.0.3:6000"))
		w.move(a, b, 2, 100_000)
		w.move(b, a, 3, 100_000)
		time.Sleep(time.Second)
		require.Len(t, made, 2)
		require.Positive(t, made[1].acks.Load())
		require.NoError(t, b.SetCongestionControl(nil))
		old := made[1].acks.Load()
		w.move(b, a, 4, 100_000)
		require.Equal(t, old, made[1].acks.Load())
		require.Len(t, made, 2)
	})
}

// countingControl counts the calls of a controller.
type countingControl struct {
	congestion.Control
	acks atomic.Int32
}

func (c *countingControl) OnAck(s *congestion.State) {
	c.acks.Add(1)
	c.Control.OnAck(s)
}

// SetMessageMode concerns what is written from then on. Waiting data keeps its
// boundaries.
func TestSetMessageMode(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&kcp.Config{MessageMode: true, SendWindow: 1}, nil)
		write := func(s string) {
			_, err := a.Write([]byte(s))
			require.NoError(t, err)
		}
		write("first") // fills the window, so the rest waits
		write("second")
		require.NoError(t, a.SetMessageMode(false))
		write("thi")
		write("rd")
		require.ErrorIs(t, a.WriteMessage(nil), kcp.ErrNotMessageMode)
		require.NoError(t, a.SetMessageMode(true))
		require.NoError(t, a.WriteMessage([]byte("fourth")))
		require.NoError(t, a.SetMessageMode(true)) // no change
		buf := make([]byte, 100)
		for _, want := range []string{"first", "second", "third", "fourth"} {
			n, err := b.ReadMessage(buf)
			require.NoError(t, err)
			require.Equal(t, want, string(buf[:n]))
		}
	})
}

// SetWriteBuffer moves the bound of what Write takes.
func TestSetWriteBuffer(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		w.net.Cut("10.0.0.1", "10.0.0.2")
		require.NoError(t, a.SetWriteBuffer(50_000))
		data := content(1, 400_000)
		done := make(chan error, 1)
		go func() {
			_, err := a.Write(data)
			done <- err
		}()
		time.Sleep(time.Second)
		require.InDelta(t, 50_000, a.Stats().WriteBuffered, 5000)
		require.NoError(t, a.SetWriteBuffer(100_000)) // the Write that waits goes on
		time.Sleep(time.Second)
		require.InDelta(t, 100_000, a.Stats().WriteBuffered, 8000)
		require.NoError(t, a.SetWriteBuffer(0)) // Config's 4 MiB
		require.NoError(t, <-done)
		w.net.Heal("10.0.0.1", "10.0.0.2")
		receive(t, b, data)
	})
}

// The text of an error names the setting.
func TestSetterErrorText(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, _, _ := w.pair(nil, nil)
		require.True(t, strings.HasPrefix(a.SetMTU(49).Error(), "kcp: Config.MTU is 49: must be in [50, 65507]"))
	})
}
