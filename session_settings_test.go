package kcp

import (
	"errors"
	"math"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A setter refuses what Config would refuse, and changes nothing then. After
// Close it fails.
func TestSettersCheck(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		cfg := &Config{Cipher: testAEAD(t), FEC: FEC{Data: 3, Parity: 1}}
		a, b, _ := w.pair(cfg, cfg)
		room := cfg.overhead().total()
		machine := func() (machineConfig, uint32) {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.kcp.cfg, a.kcp.snd.rtt.minRTO
		}
		config, minRTO := machine()
		for _, n := range []int{-1, 1, minMTU, room + minMTU - 1, maxUDPPayload + 1, math.MaxInt32, math.MinInt32} {
			requireConfigError(t, "MTU", a.SetMTU(n))
		}
		for _, n := range []int{-1, maxWindow + 1, math.MaxInt32, math.MinInt32} {
			requireConfigError(t, "SendWindow", a.SetWindow(n, 0))
			requireConfigError(t, "ReceiveWindow", a.SetWindow(1, n))
		}
		requireConfigError(t, "NoDelay", a.SetNoDelay(NoDelayTurbo+1, 0, 0))
		for _, d := range []time.Duration{-1, 1, 10*time.Millisecond - 1, 5*time.Second + 1, math.MaxInt64, math.MinInt64} {
			requireConfigError(t, "Interval", a.SetNoDelay(0, d, 1))
		}
		for _, n := range []int{-1, 1, minWriteBuffer - 1, maxConfigWriteBuffer + 1, math.MaxInt32} {
			requireConfigError(t, "WriteBuffer", a.SetWriteBuffer(n))
		}
		after, minRTOAfter := machine()
		require.Equal(t, config, after)
		require.Equal(t, minRTO, minRTOAfter)
		require.Nil(t, a.rare)

		require.NoError(t, a.SetMTU(room+minMTU))
		require.NoError(t, a.SetWindow(1, 1))
		require.NoError(t, a.SetNoDelay(NoDelayTurbo, 5*time.Second, math.MaxInt32))
		require.NoError(t, a.SetNoDelay(NoDelayTurbo, 10*time.Millisecond, math.MinInt32))
		require.NoError(t, a.SetWriteBuffer(minWriteBuffer))
		w.move(a, b, 1, 5000)
		require.NoError(t, a.SetWindow(maxWindow, maxWindow))
		require.NoError(t, a.SetMTU(maxUDPPayload))
		require.NoError(t, a.SetWriteBuffer(maxConfigWriteBuffer))
		w.move(a, b, 2, 200_000)
		w.move(b, a, 3, 200_000)

		setters := func(c *Conn) []error {
			return []error{
				c.SetMTU(1000), c.SetWindow(5, 5), c.SetNoDelay(NoDelayOn, 0, 0),
				c.SetCongestionControl(nil), c.SetMessageMode(true), c.SetWriteBuffer(0),
			}
		}
		require.NoError(t, a.Close())
		for _, err := range setters(a) {
			require.ErrorIs(t, err, net.ErrClosed)
		}
		require.NoError(t, errors.Join(setters(b)...), "it has ended, and is not closed")
		require.Nil(t, b.settings())
	})
}

func requireConfigError(t *testing.T, field string, err error) {
	t.Helper()
	var bad *ConfigError
	require.ErrorAs(t, err, &bad)
	require.Equal(t, field, bad.Field)
}

// SetMTU bounds what is sent, also of what was written before, and ends path MTU
// discovery. A black hole is found all the same.
func TestSetMTU(t *testing.T) {
	long(t)
	inWorld(t, 2, path(0), func(w *world) {
		a, b, _ := w.pair(&Config{MaxMTU: 9000}, nil)
		w.move(a, b, 1, 1<<20)
		require.Equal(t, 9000, a.Stats().PathMTU.MTU)
		data := content(2, 1<<20)
		written := make(chan error, 1)
		go func() {
			_, err := a.Write(data)
			written <- err
		}()
		time.Sleep(100 * time.Millisecond) // within the transfer
		tap := w.tap()
		require.NoError(t, a.SetMTU(700))
		receive(t, b, data)
		require.NoError(t, <-written)
		require.LessOrEqual(t, tap.largest(2, 1), 700)
		w.move(a, b, 3, 1<<20)
		require.Equal(t, 700, tap.largest(2, 1), "no probe, either")
		require.Equal(t, 700, a.Stats().PathMTU.MTU)
		require.Equal(t, 700-datagramHeader, a.MaxDatagramSize())

		require.NoError(t, a.SetMTU(1300))
		w.move(a, b, 4, 1<<20)
		require.Equal(t, 1300, tap.largest(2, 1))
		w.net.SetLink("10.0.0.2", "10.0.0.1", path(1250))
		w.move(a, b, 5, 1<<20)
		time.Sleep(time.Second) // all was there before the verdict
		require.EqualValues(t, 1, a.Stats().PathMTU.BlackHoles)
		require.LessOrEqual(t, a.Stats().PathMTU.MTU, 1250)

		w.net.SetLink("10.0.0.2", "10.0.0.1", path(0))
		require.NoError(t, a.SetMTU(0))
		require.Equal(t, 1400, a.Stats().PathMTU.MTU)
		w.move(a, b, 6, 1<<20)
		require.Equal(t, 9000, a.Stats().PathMTU.MTU, "discovery goes on")
	})
}

// Messages are cut for the MTU that was set, so the longest is shorter.
func TestSetMTUOfMessages(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		cfg := &Config{MessageMode: true}
		a, b, _ := w.pair(cfg, cfg)
		a.mu.Lock()
		require.NoError(t, a.kcp.shrinkMTU(1200)) // the size from before would do for messages
		a.mu.Unlock()
		require.NoError(t, a.SetMTU(100))
		longest := maxFragments * (100 - headerSize)
		require.Equal(t, longest, a.MaxMessageSize())
		require.ErrorIs(t, a.WriteMessage(make([]byte, longest+1)), ErrMessageTooLarge)
		tap := w.tap()
		require.NoError(t, a.WriteMessage(content(1, longest)))
		buf := make([]byte, longest)
		n, err := b.ReadMessage(buf)
		require.NoError(t, err)
		require.Equal(t, content(1, longest), buf[:n])
		require.Equal(t, 100, tap.largest(2, 1))
	})
}

// The receive window bounds what waits for Read. When it grows, the peer learns
// of it at once, and what had arrived behind the old one can be read.
func TestSetReceiveWindow(t *testing.T) {
	inWorld(t, 2, clean, func(w *world) {
		a, b, _ := w.pair(nil, nil)
		require.NoError(t, b.SetWindow(0, 1)) // 128
		data := content(1, 600_000)
		_, err := a.Write(data)
		require.NoError(t, err)
		time.Sleep(time.Second)
		queued := func() uint32 {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.kcp.rcv.queued
		}
		require.EqualValues(t, 128, queued())
		require.Zero(t, a.Stats().RemoteWindow)
		require.NoError(t, b.SetWindow(0, 300))
		time.Sleep(2*clean.Delay + time.Millisecond) // a window update, and what it lets go
		require.Greater(t, queued(), uint32(128))
		time.Sleep(time.Second)
		require.EqualValues(t, 300, queued())
		require.NoError(t, b.SetWindow(0, 128)) // less than it holds
		receive(t, b, data)
		w.move(a, b, 2, 600_000)
		require.LessOrEqual(t, a.Stats().RemoteWindow, 128)
	})
}

// SetNoDelay sets what it is given, and leaves the rest.
func TestSetNoDelay(t *testing.T) {
	inWorld(t, 1, clean, func(w *world) {
		a, b, _ := w.pair(nil, nil)
		want := a.kcp.cfg
		require.NoError(t, a.SetNoDelay(0, 0, 0))
		require.Equal(t, want, a.kcp.cfg)
		want.nodelay = NoDelayOff
		require.NoError(t, a.SetNoDelay(NoDelayOff, 0, 0))
		require.Equal(t, want, a.kcp.cfg)
		require.EqualValues(t, rtoMin, a.kcp.snd.rtt.minRTO)
		want.interval, want.fastResend = 200, 7
		require.NoError(t, a.SetNoDelay(0, 200*time.Millisecond, 7))
		require.Equal(t, want, a.kcp.cfg)
		want.fastResend = 0
		require.NoError(t, a.SetNoDelay(0, 0, -1))
		require.Equal(t, want, a.kcp.cfg)
		w.move(a, b, 1, 5000)
		require.GreaterOrEqual(t, a.Stats().RTO, 200*time.Millisecond, "interval is its least variance term")
	})
	inWorld(t, 1, clean, func(w *world) {
		a, _, _ := w.pair(&Config{MinRTO: 70 * time.Millisecond}, nil)
		require.NoError(t, a.SetNoDelay(NoDelayTurbo, 0, 0))
		require.EqualValues(t, 70, a.kcp.snd.rtt.minRTO)
	})
}

// A WriteMessage that waits does not send part of a stream, if the mode changes.
func TestSetMessageModeDuringWrite(t *testing.T) {
	inWorld(t, 2, clean, func(w *world) {
		a, b, _ := w.pair(&Config{MessageMode: true, WriteBuffer: minWriteBuffer, SendWindow: 1}, nil)
		w.net.Cut("10.0.0.1", "10.0.0.2")
		_, err := a.Write(content(1, 4000))
		require.NoError(t, err)
		waiting := make(chan error, 1)
		go func() { waiting <- a.WriteMessage([]byte("message")) }()
		time.Sleep(time.Second)
		require.NoError(t, a.SetMessageMode(false))
		w.net.Heal("10.0.0.1", "10.0.0.2")
		receive(t, b, content(1, 4000))
		require.ErrorIs(t, <-waiting, ErrNotMessageMode)
	})
}
