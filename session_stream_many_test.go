package kcp

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Idle streams are small, and those that are over leave nothing: no memory, no
// entry of a table, no credit.
func TestManyStreams(t *testing.T) {
	sequential(t)
	idle, total := int(fewer(10000)), 100000
	if testing.Short() {
		total = idle + 1500
	}
	inWorld(t, 17, clean, func(w *world) {
		config := &Config{MaxStreams: idle}
		a, b, _ := w.pair(config, config)
		s, r := streamPair(t, a, b, nil)
		require.NoError(t, s.Close())
		require.NoError(t, r.Close())
		time.Sleep(5 * time.Second)
		before := memoryInUse()
		mine, theirs := make([]*Stream, idle), make([]*Stream, idle)
		for i := range mine {
			mine[i] = openStream(t, a, nil)
			if i%1000 == 999 {
				time.Sleep(100 * time.Millisecond)
			}
		}
		for i := range theirs {
			theirs[i] = acceptStream(t, b)
		}
		time.Sleep(5 * time.Second)
		each := (memoryInUse() - before) / int64(2*idle)
		t.Logf("%d bytes for each end of a stream", each)
		require.LessOrEqual(t, each, int64(1024))
		for i := range mine {
			require.NoError(t, mine[i].Close())
			require.NoError(t, theirs[i].Close())
		}
		mine, theirs = nil, nil
		time.Sleep(5 * time.Second)
		for i := idle; i < total; i++ {
			useAndClose(t, a, b, i)
		}
		time.Sleep(5 * time.Second)
		for _, c := range []*Conn{a, b} {
			require.Zero(t, figuresOf(c))
			c.mu.Lock()
			require.Zero(t, c.kcp.WaitSend()+int(c.kcp.rcv.queued+c.kcp.rcv.void)+c.kcp.rcv.early)
			require.False(t, c.streams.sched.busy())
			require.Empty(t, append(c.streams.openings, c.streams.backlog...))
			c.mu.Unlock()
		}
		left := memoryInUse() - before
		t.Logf("%d streams have left %d bytes", total, left)
		// The runtime keeps stacks of goroutines that were: about 160 KB.
		require.LessOrEqual(t, left, int64(64<<10+2*total))
		s, r = streamPair(t, a, b, nil)
		bothWays(t, s, r, content(1, 3*initialCredit), content(2, 3*initialCredit))
		bothWays(t, a, b, content(3, 3*initialCredit), content(4, 3*initialCredit))
		runtime.KeepAlive(mine)
		runtime.KeepAlive(theirs)
	})
}

// useAndClose opens a stream, and ends it in one of several ways.
func useAndClose(t *testing.T, a, b *Conn, i int) {
	if i%2 == 1 {
		a, b = b, a
	}
	s := openStream(t, a, nil)
	require.NoError(t, s.SendMessage([]byte("message"), &MessageOptions{Done: func(error) {}, Lifetime: time.Duration(i%3) * time.Second}))
	r := acceptStream(t, b)
	switch i % 5 {
	case 0:
		require.NoError(t, s.Reset(1))
		require.NoError(t, r.Close())
	case 1: // not read
		require.NoError(t, r.Close())
		require.NoError(t, s.Close())
	default:
		receive(t, r, []byte("message"))
		require.NoError(t, s.Close())
		require.NoError(t, r.Close())
	}
}
