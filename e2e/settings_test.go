package e2e

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/trace"
	"github.com/stretchr/testify/require"
)

// SetKeepAlive counts from the last packet, and takes effect at once.
func TestSetKeepAlive(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, _, _ := w.pair(&kcp.Config{KeepAlive: -1}, &kcp.Config{KeepAlive: -1})
		time.Sleep(20 * time.Second)
		pings := w.pings()
		passes := func(want int32) {
			t.Helper()
			pings.Store(0)
			time.Sleep(100 * time.Second)
			synctest.Wait()
			require.InDelta(t, want, pings.Load(), 1)
		}
		passes(0)
		require.NoError(t, a.SetKeepAlive(2*time.Second))
		synctest.Wait()
		require.EqualValues(t, 1, pings.Load(), "the peer was silent for longer")
		passes(50)
		require.NoError(t, a.SetKeepAlive(20*time.Second))
		passes(5)
		require.NoError(t, a.SetKeepAlive(-1))
		passes(0)
		require.NoError(t, a.SetKeepAlive(time.Second))
		require.NoError(t, a.SetKeepAlive(0))
		passes(0)
		w.cut()
		w.say(a, "are you there?")
		from := time.Now()
		<-a.Done()
		require.InDelta(t, 30, time.Since(from).Seconds(), 0.1, "Config.PeerTimeout holds")
	})
}

// SetPeerTimeout takes effect at once, and is counted from what was unanswered first.
func TestSetPeerTimeout(t *testing.T) {
	const second = time.Second
	for name, tc := range map[string]struct {
		config kcp.Config
		silent time.Duration // before the call
		set    time.Duration
		lost   time.Duration // after the last packet; 0: never
	}{
		"shorter":        {silent: 2 * second, set: 5 * second, lost: 5 * second},
		"long past":      {silent: 20 * second, set: 5 * second, lost: 20 * second},
		"before silence": {set: 3 * second, lost: 3 * second},
		"of hours":       {config: kcp.Config{PeerTimeout: time.Hour}, silent: second, set: 400 * time.Millisecond, lost: second},
		"longer":         {silent: 20 * second, set: 60 * second, lost: 60 * second},
		"never":          {silent: 20 * second, set: -1},
		"as it was":      {silent: 20 * second, set: 0, lost: 30 * second},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 1, clean, func(t *testing.T, w *world) {
				a, b, _ := w.pair(&tc.config, &kcp.Config{PeerTimeout: -1})
				time.Sleep(200 * time.Millisecond)
				w.cut()
				from := time.Now()
				w.say(a, "and now?")
				time.Sleep(tc.silent)
				require.NoError(t, a.SetPeerTimeout(tc.set))
				if tc.lost == 0 {
					time.Sleep(20 * time.Minute)
					w.heal()
					w.hear(b, "and now?")
					return
				}
				<-a.Done()
				var lost *kcp.PeerLostError
				require.ErrorAs(t, a.Err(), &lost)
				require.InDelta(t, tc.lost.Seconds(), time.Since(from).Seconds(), 0.002)
				require.NoError(t, a.SetPeerTimeout(0), "it has ended, and is not closed")
			})
		})
	}
}

// SetTrace changes the hooks of a session that goes on. The new ones are shown how far it
// is, the old ones nothing more; those that come too late nothing at all. A value stays.
func TestSetTrace(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		var clients tracedSessions
		a, b, _ := w.pair(&kcp.Config{Tracer: clients.tracer}, nil)
		stopped := 0
		hooks := func(c *kcp.Conn) *kcp.Trace {
			h := clients.tracer(c)
			h.Stopped = func() { stopped++ }
			return h
		}
		require.Nil(t, a.Value())
		a.SetValue(7)
		move := func() { bothWays(t, a, b, content(1, 10_000), content(2, 10_000)); w.settle() }
		move()
		a.SetTrace(hooks(a))
		first, second := clients.all[0], clients.all[1]
		seen := len(first.first)
		require.Positive(t, seen)
		move()
		require.Len(t, first.first, seen)
		require.Positive(t, len(second.first))
		require.Equal(t, []trace.SessionState{trace.SessionDialled, trace.SessionEstablished}, second.states)
		require.Zero(t, stopped)

		a.SetTrace(nil)
		require.Equal(t, 1, stopped)
		seen = len(second.first)
		move()
		require.Len(t, second.first, seen)

		b.SetTrace(hooks(b))
		require.NoError(t, b.Close())
		w.settle()
		third := clients.all[2]
		require.Equal(t, []trace.SessionState{trace.SessionAccepted, trace.SessionEstablished, trace.SessionClosing, trace.SessionEnded}, third.states)
		require.Equal(t, 1, stopped, "the end was shown")
		b.SetTrace(hooks(b))
		require.Equal(t, 2, stopped)
		require.Empty(t, clients.all[3].states)
		require.Equal(t, 7, a.Value(), "also after the end")
		a.SetValue("of another type")
		require.Equal(t, "of another type", a.Value())
	})
}
