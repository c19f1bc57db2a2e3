package kcp

import (
	"context"
	"math"
	"math/bits"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/congestion"
)

// A session may run 4 MiB ahead of its peer. Once the sessions of its endpoint
// hold much, it may run 256 KiB ahead, or as far as its path needs, unless the
// program has said otherwise. What sessions hold is counted, and released.
func TestWriteMemoryPressure(t *testing.T) {
	full := content(1, defaultWriteBuffer+1)
	inWorld(t, 61, clean, func(w *world) {
		l := w.listen(nil)
		dial := func(addr string, config *Config) *Conn {
			e, _ := w.endpoint(addr, config)
			c := w.dial(e)
			bothWays(t, c, accepted(t, l), []byte("here"), []byte("here"))
			return c
		}
		conns := []*Conn{
			dial("10.0.0.2:0", &Config{SendWindow: 32}),
			dial("10.0.0.3:0", &Config{WriteBuffer: 1 << 20}),
			dial("10.0.0.4:0", &Config{CongestionControl: congestion.NewNone}),
		}
		for _, c := range conns {
			w.net.Cut("10.0.0.1", c.LocalAddr().String()[:8])
		}
		// fill writes until the buffer has no room, and returns what it holds.
		fill := func(c *Conn) int {
			require.NoError(t, c.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
			_, err := c.Write(full)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			return c.Stats().WriteBufferUsed
		}
		const segment = defaultConfigMTU + writeCostPerSegment
		held := func(want ...int) { // the accounts are within two grains of that
			t.Helper()
			for i, n := range want {
				require.InDelta(t, n/writeGrain, conns[i].ep.load.written.Load(), 2)
			}
		}

		const stranger = writePressure + 1 // what other sessions hold
		for _, c := range conns {
			c.ep.load.written.Add(stranger)
		}
		require.InDelta(t, scarceWriteBuffer, fill(conns[0]), segment)
		require.Zero(t, conns[0].WriteAvailable())
		require.InDelta(t, 1<<20, fill(conns[1]), segment, "as the Config says")
		require.NoError(t, conns[1].SetWriteBuffer(2<<20))
		require.InDelta(t, 2<<20, fill(conns[1]), segment, "as the program says")
		require.NoError(t, conns[1].SetWriteBuffer(0))
		require.Zero(t, conns[1].WriteAvailable(), "that of the Config again")
		require.InDelta(t, defaultWriteBuffer, fill(conns[2]), segment, "the path takes much")
		require.NoError(t, conns[2].Abort())
		for _, c := range conns {
			c.ep.load.written.Add(-stranger)
		}

		held(scarceWriteBuffer, 2<<20, 0)
		require.InDelta(t, defaultWriteBuffer, fill(conns[0]), segment, "there is no pressure any more")
		held(defaultWriteBuffer, 2<<20, 0)
		require.NoError(t, conns[0].Abort())
		require.Zero(t, conns[0].ep.load.written.Load(), "what has ended holds nothing")
	})
}

// The more the sessions of an endpoint hold, the less room each has beyond what
// its path needs.
func TestWriteMemoryFollowsPressure(t *testing.T) {
	inWorld(t, 61, clean, func(w *world) {
		a, _, _ := w.pair(&Config{SendWindow: 1}, nil)
		for held, want := range map[int64]int{
			64 << 20: defaultWriteBuffer, 64<<20 + writeGrain: 256 << 10, 128 << 20: 128 << 10, 512 << 20: 32 << 10, 1 << 30: 16 << 10, 1 << 40: 16 << 10,
		} {
			a.ep.load.written.Store(held / writeGrain)
			require.InDelta(t, want, a.writeBuffer(), 100)
		}
		a.ep.load.written.Store(0)
	})
}

// What waits for room is woken when other sessions hold less, although the peer is
// silent: Write, the channel of WriteReady, and a group.
func TestWriteMemoryPressureEnds(t *testing.T) {
	inWorld(t, 62, clean, func(w *world) {
		l := w.listen(nil)
		e, _ := w.endpoint("10.0.0.2:0", nil)
		conns := make([]*Conn, 2)
		for i := range conns {
			conns[i] = w.dial(e)
			bothWays(t, conns[i], accepted(t, l), []byte("here"), []byte("here"))
			require.NoError(t, conns[i].SetWindow(32, 0))
		}
		w.net.Cut("10.0.0.1", "10.0.0.2")
		g := NewGroup()
		require.NoError(t, g.Add(conns[1]))
		const stranger = writePressure + 1
		e.load.written.Add(stranger)
		done := make(chan error, 1)
		go func() {
			_, err := conns[0].Write(make([]byte, 1<<20))
			done <- err
		}()
		batch := []Outgoing{{Conn: conns[1], Data: make([]byte, 1<<20)}}
		g.Send(batch)
		require.ErrorIs(t, batch[0].Err, ErrWouldBlock)
		time.Sleep(time.Second)
		ready := conns[0].WriteReady()
		select {
		case <-ready:
			t.Fatal("there is no room")
		case <-done:
			t.Fatal("there was no room")
		default:
		}
		e.load.written.Add(-stranger)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		events := make([]Event, 1)
		n, err := g.Wait(ctx, events)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, EventWritable, events[0].Kind)
		select {
		case <-ready:
		case <-ctx.Done():
			t.Fatal("WriteReady still waits")
		}
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-ctx.Done():
			t.Fatal("Write still waits")
		}
		for _, c := range conns {
			require.NoError(t, c.Abort())
		}
	})
}

// Sizes at their extremes: more than 4 GiB in one session, and the largest
// windows of the largest packets, on 32 bits too.
func TestWriteMemoryExtremes(t *testing.T) {
	config := &Config{MTU: 60000, MaxMTU: 60000, SendWindow: 65535, ReceiveWindow: 65535, CongestionControl: congestion.NewNone}
	inWorld(t, 64, clean, func(w *world) {
		a, b, _ := w.pair(config, config)
		bothWays(t, a, b, make([]byte, 100_000), []byte("here"))
		all := &a.ep.load.written
		before := all.Load()
		a.mu.Lock()
		defer a.mu.Unlock()
		all.Add(writePressure + 1)
		require.Equal(t, defaultWriteBuffer, a.writeBuffer())
		all.Add(-writePressure - 1)
		if math.MaxInt == math.MaxInt32 {
			return
		}
		much := 1<<(bits.UintSize/2) + 10*writeGrain
		a.kcp.snd.bytes += much
		for range 3 {
			a.accountWrites()
			require.EqualValues(t, much/writeGrain, all.Load()-before)
		}
		a.kcp.snd.bytes -= much
		a.accountWrites()
		require.Equal(t, before, all.Load())
	})
}

// Small messages cost no write to the counter that all sessions share, and
// acknowledged data is released.
func TestWriteMemoryIsReleased(t *testing.T) {
	inWorld(t, 62, clean, func(w *world) {
		a, b, _ := w.pair(nil, nil)
		all := &a.ep.load.written
		before := all.Load()
		a.mu.Lock()
		defer a.mu.Unlock()
		for range 10 {
			_, err := a.kcp.Send(make([]byte, 1000))
			require.NoError(t, err)
			a.accountWrites()
		}
		require.Equal(t, before, all.Load())
		_, err := a.kcp.Send(make([]byte, 2*writeGrain))
		require.NoError(t, err)
		a.accountWrites()
		require.InDelta(t, 2, all.Load()-before, 0)
		a.push()
		a.mu.Unlock()
		receive(t, b, make([]byte, 10_000+2*writeGrain))
		time.Sleep(time.Second) // the acknowledgements
		a.mu.Lock()
		require.Zero(t, a.kcp.WaitSend())
		require.Equal(t, before, all.Load())
	})
}
