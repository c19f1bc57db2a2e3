package paths

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/stats"
)

// After a change of the route the shortest round trip is that of the new one within two
// minutes, of a session that is used, and of one that is idle.
func TestLeastRoundTripFollowsTheRoute(t *testing.T) {
	for _, idle := range []bool{true, false} {
		over(t, delay(20*time.Millisecond), nil, nil, func(w *world) {
			if !idle {
				w.use("requests")
			}
			time.Sleep(5 * time.Minute)
			asks := w.server // the one that measures
			if idle {
				asks = w.client
			}
			soon(w.t, 20*time.Millisecond, asks.Stats().RTTMin, "before")
			w.set(delay(200 * time.Millisecond))
			time.Sleep(2*time.Minute + 25*time.Second) // an idle session asks every 25 s
			soon(w.t, 200*time.Millisecond, asks.Stats().RTTMin, "after")
		})
	}
}

// soon requires that a round-trip time is what the path has, or as much longer as an ACK
// may be delayed.
func soon(t *testing.T, want, is time.Duration, what string) {
	t.Helper()
	require.InDelta(t, (want + 13*time.Millisecond).Seconds(), is.Seconds(), 0.014, what)
}

// patient outlives the outages.
var patient = &kcp.Config{PeerTimeout: 2 * time.Minute}

// outages are those that a session survives, and longer ones.
var outages = []time.Duration{
	100 * time.Millisecond, 300 * time.Millisecond, time.Second, 5 * time.Second, 25 * time.Second, 60 * time.Second,
}

// An outage is what limits a session, as long as it lasts, and shows as silence of the
// peer; a session without one is never limited by it.
func TestOutageIsSeen(t *testing.T) {
	for _, lasts := range outages {
		for _, kind := range []string{"data", "datagrams", "requests"} {
			t.Run(fmt.Sprint(kind, " ", lasts), func(t *testing.T) {
				t.Parallel()
				over(t, narrow(megabits(20), 100*time.Millisecond, 20*time.Millisecond), patient, patient, func(w *world) {
					w.use(kind)
					time.Sleep(10 * time.Second)
					before := w.server.Stats()
					require.NotEqual(w.t, stats.LimitOutage, before.LimitedBy)
					require.Zero(w.t, before.Limited[stats.LimitOutage], "no outage, no time")
					w.net.Cut(serverHost, clientHost)
					time.Sleep(lasts - time.Millisecond)
					s := w.server.Stats()
					if lasts > 2*time.Second || kind == "data" {
						require.Equal(w.t, stats.LimitOutage, s.LimitedBy)
						require.InDelta(w.t, lasts.Seconds(), s.Silence.Seconds(), 1.1)
						require.InDelta(w.t, lasts.Seconds(), s.Limited[stats.LimitOutage].Seconds(), 0.02+least(kind))
					}
					w.net.Heal(serverHost, clientHost)
					time.Sleep(10 * time.Second)
					s = w.server.Stats()
					{
						require.NotEqual(w.t, stats.LimitOutage, s.LimitedBy)
						require.Less(w.t, s.Silence, 2*time.Second)
					}
				})
			})
		}
	}
}

// least is how late an outage begins to count: with what the end that sends asks next.
func least(kind string) float64 {
	return map[string]float64{"data": 0.1, "datagrams": 1, "requests": 0.3}[kind]
}

// use has the server send for ever: data, datagrams alone, or a message now and then.
func (w *world) use(kind string) {
	switch kind {
	case "data":
		w.download()
	case "datagrams":
		w.each(20*time.Millisecond, func() error { return w.server.SendDatagram(make([]byte, 100)) })
	case "requests":
		w.each(250*time.Millisecond, func() error {
			_, err := w.server.TryWrite([]byte("request"))
			return err
		})
	}
}

// each calls f every so often, until it fails or the test is over.
func (w *world) each(d time.Duration, f func() error) {
	tick := func() {}
	tick = func() {
		if f() == nil {
			w.net.At(w.net.Elapsed()+d, func() { go tick() })
		}
	}
	go tick()
}
