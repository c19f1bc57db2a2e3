package netpath

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the package are the figures that RULES.md says.
func TestRoundTripFigures(t *testing.T) {
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{"| Round-trip time shown", "1 s", RefreshAfter},
		{"| Round-trip time shown", "10 s", askedFor * time.Second},
		{"| Round-trip time shown", "3 s", promptFor},
	})
}

// Samples at their extremes.
func TestRTTSamples(t *testing.T) {
	var r RTTEstimate
	r.Prompted(0, 0)
	r.Prompted(-time.Second, 0)
	require.Zero(t, r)
	require.Equal(t, 7*time.Millisecond, r.Current(7))
	r.Prompted(1, 0)
	require.Equal(t, time.Microsecond, r.Current(7))
	require.NotZero(t, r.At, "there was a sample")
	r.Prompted(time.Duration(1<<63-1), time.Hour)
	require.Equal(t, time.Duration((7+1<<32-1)/8)*time.Microsecond, r.Current(7))
	require.Equal(t, time.Duration(1<<32-1)*time.Microsecond, r.Least(), "that of an hour before counts no more")
}

// A single question changes nothing. Further ones have samples of PING count in place of
// those of data, for ten seconds after the last.
func TestWanted(t *testing.T) {
	const second = time.Second
	for name, test := range map[string]struct {
		asked  []time.Duration
		at     time.Duration
		wanted bool
	}{
		"never":          {nil, 0, false},
		"once":           {[]time.Duration{second}, 2 * second, false},
		"at once":        {[]time.Duration{second, second + 1}, 2 * second, false},
		"twice":          {[]time.Duration{second, 3 * second}, 3 * second, true},
		"within 10 s":    {[]time.Duration{second, 3 * second}, 12 * second, true},
		"after 10 s":     {[]time.Duration{second, 3 * second}, 13 * second, false},
		"too far apart":  {[]time.Duration{second, 11 * second}, 12 * second, false},
		"18 hours later": {[]time.Duration{65535 * second, 65538 * second}, 65539 * second, true},
	} {
		var r RTTEstimate
		for _, at := range test.asked {
			r.Ask(at)
		}
		require.Equal(t, test.wanted, r.ByData(second, test.at), name)
	}
}

// The answer to a PING counts for three seconds in place of ACKs, if the time is wanted,
// and what data has shown does not count into it.
func TestPromptSamples(t *testing.T) {
	const ms, second = time.Millisecond, time.Second
	var r RTTEstimate
	r.ByData(80*ms, second)
	require.Equal(t, 80*ms, r.Current(0))
	r.Ask(second)
	r.Ask(3 * second)
	r.Prompted(40*ms, 3*second)
	require.Equal(t, 40*ms, r.Current(0))
	require.True(t, r.Prompt)
	r.ByData(80*ms, 6*second-1)
	require.Equal(t, 40*ms, r.Current(0))
	require.True(t, r.Recent(4*second-1))
	require.False(t, r.Recent(4*second))
	require.Equal(t, second, r.Age(4*second))
	r.ByData(80*ms, 6*second)
	require.Equal(t, 45*ms, r.Current(0), "an eighth of the sample")
	require.False(t, r.Prompt)
}

// The shortest round trip is that of the last one to two minutes. Minutes without samples
// change nothing.
func TestLeast(t *testing.T) {
	const ms = time.Millisecond
	var r RTTEstimate
	require.Zero(t, r.Least())
	for i, step := range []struct{ at, sample, least time.Duration }{
		{0, 20 * ms, 20 * ms},
		{30 * time.Second, 10 * ms, 10 * ms},
		{59 * time.Second, 200 * ms, 10 * ms},
		{61 * time.Second, 200 * ms, 10 * ms},
		{119 * time.Second, 190 * ms, 10 * ms},
		{120 * time.Second, 300 * ms, 190 * ms},
		{150 * time.Second, 180 * ms, 180 * ms},
		{time.Hour, 500 * ms, 500 * ms},
		{time.Hour + time.Minute, 400 * ms, 400 * ms},
		{time.Hour + 2*time.Minute, 600 * ms, 400 * ms},
	} {
		r.Prompted(step.sample, step.at)
		require.Equal(t, step.least, r.Least(), i)
	}
}
