package paths

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// roundTrips are those of a cable, of continents, of satellites, and of mobile links that
// queue.
var roundTrips = []time.Duration{
	100 * time.Microsecond, 20 * time.Millisecond, 80 * time.Millisecond, 201 * time.Millisecond,
	300 * time.Millisecond, 600 * time.Millisecond, time.Second, 3 * time.Second,
}

// near requires that a round-trip time is what the path has, within a tenth.
func near(t *testing.T, want, is time.Duration, what string) {
	t.Helper()
	require.InDelta(t, want.Seconds(), is.Seconds(), want.Seconds()/10+0.002, what)
}

// Ping returns the round-trip time of a path that has changed meanwhile.
func TestPingAfterChange(t *testing.T) {
	for _, before := range []time.Duration{20 * time.Millisecond, 600 * time.Millisecond} {
		for _, after := range roundTrips {
			t.Run(before.String()+" "+after.String(), func(t *testing.T) {
				t.Parallel()
				over(t, delay(before), nil, nil, func(w *world) {
					_, err := w.client.Ping(w.within(time.Minute))
					require.NoError(w.t, err)
					time.Sleep(3 * before) // a link keeps the order of its packets
					w.set(delay(after))
					for range 3 {
						ping, err := w.client.Ping(w.within(10*after + time.Second))
						require.NoError(w.t, err)
						near(w.t, after, ping, "Ping")
					}
				})
			})
		}
	}
}
