package kcp

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// Opening a session takes as many packets, and about as much memory in all, at
// the thousandth as at the first: nothing is walked or copied for each.
func TestOpeningManySessions(t *testing.T) {
	sequential(t)
	if !alone(t) {
		return
	}
	inWorld(t, 0, netsim.LinkConfig{Delay: time.Millisecond}, func(w *world) {
		const n = 64
		config := Config{MaxSessions: 1 << 16}
		l := w.listen(&config)
		e, _ := w.endpoint("10.0.0.2:0", &config)
		open := func() (packets, bytes uint64) {
			var before, after runtime.MemStats
			sent := e.Stats().PacketsSent + l.ep.Stats().PacketsSent
			runtime.ReadMemStats(&before)
			for range n {
				w.dial(e)
				accepted(t, l)
			}
			synctest.Wait()
			runtime.ReadMemStats(&after)
			return e.Stats().PacketsSent + l.ep.Stats().PacketsSent - sent, after.TotalAlloc - before.TotalAlloc
		}
		open() // what is made once
		packets, bytes := open()
		const rounds = 16
		var total uint64
		for range rounds {
			p, b := open()
			require.Equal(t, packets, p)
			total += b
		}
		require.Less(t, total, rounds*bytes*5/4)
	})
}
