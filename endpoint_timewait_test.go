package kcp

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sessions opens n sessions at once, and ends them in order.
func (w *world) sessions(e *Endpoint, l *Listener, n int) {
	w.t.Helper()
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			c := w.dial(e)
			_, err := c.Write([]byte("hello"))
			require.NoError(w.t, err)
			time.Sleep(10 * time.Second)
			require.NoError(w.t, c.Close())
		})
	}
	for range n {
		c := accepted(w.t, l)
		all.Go(func() {
			receive(w.t, c, []byte("hello"))
			_, _ = c.Read(make([]byte, 1)) // EOF
			require.NoError(w.t, c.Close())
		})
	}
	all.Wait()
}

// heapInUse returns the bytes of heap in use, without stacks.
func heapInUse() int64 {
	memoryInUse() // collects garbage
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// An endpoint that is idle after many sessions holds as much memory as before
// them, once the last is out of TIME-WAIT.
func TestBurstLeavesNoMemory(t *testing.T) {
	sequential(t)
	if !alone(t) {
		return
	}
	inWorld(t, 2, clean, func(w *world) {
		config := &Config{Backlog: 2000, MaxHalfOpen: 2000, WriteBuffer: 4096}
		l := w.listen(config)
		e, _ := w.endpoint("10.0.0.2:0", config)
		w.sessions(e, l, 10)
		const n = 1000
		var spare sync.WaitGroup
		for range 3 * n { // the runtime keeps what describes a goroutine
			spare.Go(func() { time.Sleep(time.Second) })
		}
		spare.Wait()
		time.Sleep(2 * timeWaitTime)
		before := heapInUse()
		w.sessions(e, l, n)
		held := heapInUse() - before
		time.Sleep(2 * timeWaitTime)
		left := heapInUse() - before
		t.Logf("%d bytes in TIME-WAIT, %d after it", held, left)
		require.Less(t, left, int64(250*n), "bytes for each session")
		for _, e := range []*Endpoint{e, l.Endpoint()} {
			require.Zero(t, remembered(t, e))
			require.Zero(t, e.table.HalfOpen(), "no session is left")
		}
	})
}

// remembered returns how many sessions e remembers. With none, there is no memory
// and no timer for them.
func remembered(t *testing.T, e *Endpoint) int {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	n := e.table.timeWaits.Len()
	if n == 0 {
		require.Zero(t, e.table.timeWaits)
		require.Nil(t, e.table.expiry)
	}
	return n
}

// The table of TIME-WAIT forgets entries in their time also while new ones come,
// and all of them when the endpoint closes.
func TestTimeWaitEnds(t *testing.T) {
	inWorld(t, 2, clean, func(w *world) {
		l := w.listen(nil)
		e, _ := w.endpoint("10.0.0.2:0", nil)
		w.sessions(e, l, 3)
		time.Sleep(timeWaitTime - 20*time.Second)
		w.sessions(e, l, 1)
		require.Equal(t, 4, remembered(t, e))
		time.Sleep(timeWaitTime - time.Second)
		require.Equal(t, 1, remembered(t, e))
		require.NoError(t, e.Close())
		require.Zero(t, remembered(t, e))
	})
}
