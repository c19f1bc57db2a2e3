package recovery

import (
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/arqnet/kcp/stats"
	"github.com/stretchr/testify/require"
)

// next is State.Next, and returns the limit.
func next(s *Limit, f LimitFacts, now uint32, rtt int32) stats.Limit {
	s.Next(f, now, rtt)
	return s.By
}

// Each limit is named, also if others hold beside it that do not matter.
func TestNext(t *testing.T) {
	all := LimitFacts{InFlight: true, Congestion: true, Peer: true, Send: true, Address: true}
	for want, cases := range map[stats.Limit][]LimitFacts{
		stats.LimitApplication: {{}, all},
		stats.LimitReader:      {{Reader: true}},
		stats.LimitPeerWindow: {
			{Credit: true}, {Credit: true, Reader: true}, {Waits: true, Peer: true},
			{Waits: true, Peer: true, Capped: true, Reader: true, Address: true},
		},
		stats.LimitSendWindow: {{Waits: true, Peer: true, Send: true}, {Waits: true, Peer: true, Send: true, Capped: true}},
		stats.LimitCongestion: {{Waits: true, Congestion: true}, {Resend: true, Congestion: true}, {Waits: true, Congestion: true, Peer: true, Capped: true, Address: true}},
		stats.LimitRate:       {{Capped: true}, {Waits: true, Capped: true}, {Waits: true, Capped: true, Reader: true}},
		stats.LimitOutage:     {{}, {Waits: true, Congestion: true}, all},
		stats.LimitHandshake:  {{Waits: true, Address: true}},
		stats.LimitPacing:     {{Waits: true}, {Resend: true}, {Resend: true, Peer: true}, {Waits: true, Reader: true, Credit: true}},
	} {
		for _, f := range cases {
			s := Limit{Outage: want == stats.LimitOutage}
			require.Equal(t, want, next(&s, f, 1e9, 100), "%+v", f)
			require.False(t, s.Next(f, 1e9, 100), "it is the same")
		}
	}
}

// A write that waits for room is what limits only while something is in flight.
func TestRefusedWrite(t *testing.T) {
	s := Limit{Refused: true}
	require.Equal(t, stats.LimitCongestion, next(&s, LimitFacts{Waits: true, Congestion: true, InFlight: true}, 0, 100))
	require.Equal(t, stats.LimitWriteBuffer, next(&s, LimitFacts{InFlight: true}, 10, 100))
	require.Equal(t, stats.LimitApplication, next(&s, LimitFacts{}, 20, 100))
	require.Equal(t, stats.LimitApplication, next(&s, LimitFacts{InFlight: true}, 30, 100))
}

// A window that was full in the last round trips is why pacing is slow, and not before
// that, nor after others were.
func TestPacedByWindow(t *testing.T) {
	for full, f := range map[stats.Limit]LimitFacts{
		stats.LimitPeerWindow: {Waits: true, Peer: true}, stats.LimitSendWindow: {Waits: true, Peer: true, Send: true},
	} {
		s, paced, now := Limit{}, LimitFacts{Waits: true}, uint32(1<<32-50) // which comes around
		require.Equal(t, stats.LimitPacing, next(&s, paced, now, 100))
		require.Equal(t, full, next(&s, f, now, 100))
		require.Equal(t, full, next(&s, paced, now+200, 100))
		require.Equal(t, stats.LimitApplication, next(&s, LimitFacts{}, now+200, 100))
		require.Equal(t, stats.LimitPacing, next(&s, paced, now+201, 100))
		require.Equal(t, stats.LimitPacing, next(&s, paced, now, 100), "it is forgotten")
	}
}

// Every moment counts for the limit of then, and none for two.
func TestClock(t *testing.T) {
	at := func(c *LimitClock, now time.Duration) (stats.Limit, stats.LimitTimes) {
		var times stats.LimitTimes
		return c.Add(&times, time.Second, now), times
	}
	by, times := at(nil, 2*time.Second)
	require.Equal(t, stats.LimitHandshake, by)
	require.Equal(t, stats.LimitTimes{stats.LimitHandshake: time.Second}, times)
	var none *LimitClock
	by, times = at(none.End(time.Second, 4*time.Second), time.Hour)
	require.Equal(t, stats.LimitHandshake, by)
	require.Equal(t, stats.LimitTimes{stats.LimitHandshake: 3 * time.Second}, times)

	c := NewLimitClock(time.Second, 3*time.Second, stats.LimitHandshake)
	by, times = at(c, 3*time.Second)
	require.Equal(t, stats.LimitHandshake, by)
	require.Equal(t, stats.LimitTimes{stats.LimitHandshake: 2 * time.Second}, times)
	c.Change(stats.LimitApplication, 3*time.Second)
	c.Change(stats.LimitCongestion, 10*time.Second)
	c.Change(stats.LimitPacing, 10*time.Second+1)
	c.Change(stats.LimitCongestion, 10*time.Second) // a time from before
	_, _ = at(c, 11*time.Second)
	c.Change(stats.LimitApplication, 12*time.Second)
	by, times = at(c, 20*time.Second)
	require.Equal(t, stats.LimitApplication, by)
	require.Equal(t, stats.LimitTimes{
		stats.LimitHandshake: 2 * time.Second, stats.LimitApplication: 15 * time.Second,
		stats.LimitPacing: 0, stats.LimitCongestion: 2 * time.Second,
	}, times)
	require.Same(t, c, c.End(0, 21*time.Second))
	by, times = at(c, time.Hour)
	require.Equal(t, stats.LimitApplication, by)
	require.Equal(t, 16*time.Second, times[stats.LimitApplication])
	c.Change(stats.LimitCongestion, 2*time.Hour)
	by, times = at(c, 3*time.Hour)
	require.Equal(t, stats.LimitApplication, by)
	require.Equal(t, 2*time.Second, times[stats.LimitCongestion])
}

func TestNames(t *testing.T) {
	names := make(map[string]bool)
	for l := range len(stats.LimitTimes{}) {
		names[stats.Limit(l).String()] = true
	}
	require.Len(t, names, len(stats.LimitTimes{}))
	require.Equal(t, "unknown", stats.Limit(200).String())
}

// The constants of the package are the figures that RULES.md says.
func TestLimitFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{{"| What limits: ", "2 round trips", rounds}})
}
