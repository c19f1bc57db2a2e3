package paths

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
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

// The round-trip time is known at both ends after an opening, and Ping returns it, before
// any data, whatever it is.
func TestRoundTripIsKnown(t *testing.T) {
	for name, protected := range protections(t) {
		for _, rtt := range roundTrips {
			t.Run(name+" "+rtt.String(), func(t *testing.T) {
				t.Parallel()
				over(t, delay(rtt), protected(kcp.Config{}), protected(kcp.Config{}), func(w *world) {
					time.Sleep(4 * rtt)
					near(w.t, rtt, w.client.Stats().RTT, "the dialling end")
					near(w.t, rtt, w.server.Stats().RTT, "the listening end")
					for _, c := range []*kcp.Conn{w.client, w.server} {
						ping, err := c.Ping(w.within(4*rtt + time.Second))
						require.NoError(w.t, err)
						near(w.t, rtt, ping, "Ping")
					}
				})
			})
		}
	}
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

// An idle session sends few packets, whatever the round-trip time: a keep-alive and its
// answer, and none is repeated.
func TestIdleHour(t *testing.T) {
	for _, rtt := range roundTrips {
		t.Run(rtt.String(), func(t *testing.T) {
			t.Parallel()
			over(t, delay(rtt), nil, nil, func(w *world) {
				time.Sleep(time.Minute)
				before := w.net.Stats().Sent.Packets
				time.Sleep(time.Hour)
				require.LessOrEqual(w.t, w.net.Stats().Sent.Packets-before, int64(300))
			})
		})
	}
}
