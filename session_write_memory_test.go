package kcp

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A session may run 4 MiB ahead of its peer. Once the sessions of the program
// hold much, it may run 256 KiB ahead, or as far as its path needs, unless the
// program has said otherwise. What sessions hold is counted, and released.
func TestWriteMemoryPressure(t *testing.T) {
	before := writeMemory.Load()
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
			dial("10.0.0.4:0", &Config{CongestionControl: NewNoControl}),
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
		held := func(n int) { // the account is within two grains of that
			t.Helper()
			require.InDelta(t, n/writeGrain, writeMemory.Load()-before, 2)
		}

		stranger := int64(writePressure) + 1 // what other sessions hold
		writeMemory.Add(stranger)
		require.InDelta(t, leastWriteBuffer, fill(conns[0]), segment)
		require.Zero(t, conns[0].WriteAvailable())
		require.InDelta(t, 1<<20, fill(conns[1]), segment, "as the Config says")
		require.NoError(t, conns[1].SetWriteBuffer(2<<20))
		require.InDelta(t, 2<<20, fill(conns[1]), segment, "as the program says")
		require.NoError(t, conns[1].SetWriteBuffer(0))
		require.Zero(t, conns[1].WriteAvailable(), "that of the Config again")
		require.InDelta(t, defaultWriteBuffer, fill(conns[2]), segment, "the path takes much")
		require.NoError(t, conns[2].Abort())
		writeMemory.Add(-stranger)

		held(leastWriteBuffer + 2<<20)
		require.InDelta(t, defaultWriteBuffer, fill(conns[0]), segment, "there is no pressure any more")
		held(defaultWriteBuffer + 2<<20)
		require.NoError(t, conns[0].Abort())
		held(2 << 20)
	})
	require.Equal(t, before, writeMemory.Load(), "what has ended holds nothing")
}

// Small messages cost no write to the counter that all sessions share, and
// acknowledged data is released.
func TestWriteMemoryIsReleased(t *testing.T) {
	inWorld(t, 62, clean, func(w *world) {
		a, b, _ := w.pair(nil, nil)
		before := writeMemory.Load()
		a.mu.Lock()
		defer a.mu.Unlock()
		for range 10 {
			_, err := a.kcp.Send(make([]byte, 6000))
			require.NoError(t, err)
			a.accountWrites()
		}
		require.Equal(t, before, writeMemory.Load())
		_, err := a.kcp.Send(make([]byte, 2*writeGrain))
		require.NoError(t, err)
		a.accountWrites()
		require.InDelta(t, 3, writeMemory.Load()-before, 0)
		a.push()
		a.mu.Unlock()
		receive(t, b, make([]byte, 60_000+2*writeGrain))
		time.Sleep(time.Second) // the acknowledgements
		a.mu.Lock()
		require.Zero(t, a.kcp.WaitSend())
		require.Equal(t, before, writeMemory.Load())
	})
}
