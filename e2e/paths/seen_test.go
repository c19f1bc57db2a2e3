package paths

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/netsim"
	"github.com/arqnet/kcp/stats"
	"github.com/arqnet/kcp/trace"
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

// A short outage counts from when the peer began to say nothing, also if nobody looks, and
// a longer one too.
func TestOutageIsCountedWhenItIsOver(t *testing.T) {
	for _, lasts := range []time.Duration{70 * time.Millisecond, 90 * time.Millisecond, time.Second} {
		over(t, narrow(fast(20, 4), 100*time.Millisecond, 20*time.Millisecond), nil, nil, func(w *world) {
			w.use("data")
			time.Sleep(10 * time.Second)
			w.net.Cut(serverHost, clientHost)
			time.Sleep(lasts)
			w.net.Heal(serverHost, clientHost)
			time.Sleep(10 * time.Second)
			is := w.server.Stats().Limited[stats.LimitOutage]
			require.GreaterOrEqual(w.t, is, lasts-20*time.Millisecond, lasts)
			require.LessOrEqual(w.t, is, 2*lasts+500*time.Millisecond, "until something is sent again")
		})
	}
}

// Probes of the MTU are no loss, whether the path takes them or not.
func TestProbesAreNoLoss(t *testing.T) {
	for _, mtu := range []int{1420, 1500} {
		p := delay(20 * time.Millisecond)
		p.down.Rate, p.down.MTU, p.up.MTU = megabits(2), mtu, mtu
		over(t, p, &kcp.Config{MaxMTU: 1472}, &kcp.Config{MaxMTU: 1472}, func(w *world) {
			stop := false
			w.each(10*time.Millisecond, func() error {
				if stop {
					return context.Canceled
				}
				_, err := w.server.TryWrite(make([]byte, 2000))
				return err
			})
			go io.Copy(io.Discard, w.client)
			time.Sleep(10 * time.Second)
			stop = true
			time.Sleep(time.Second)
			for _, c := range []*kcp.Conn{w.client, w.server} {
				_, err := c.Ping(w.within(time.Second))
				require.NoError(w.t, err)
			}
			probes := w.server.Stats().PathMTU.Sent
			require.Positive(w.t, probes)
			s, c := w.server.Stats().Sent, w.client.Stats().Received
			require.Zero(w.t, s.Lost)
			require.Zero(w.t, c.Lost)
			require.Equal(w.t, s.Packets-probes, c.Counted, "all that were sent, up to the answer to Ping")
			if mtu == 1500 {
				require.Equal(w.t, s.Packets, c.Packets, "the probes too")
			}
		})
	}
}

// outages are those that a session survives, and longer ones.
var outages = []time.Duration{
	100 * time.Millisecond, 300 * time.Millisecond, time.Second, 5 * time.Second, 25 * time.Second, 60 * time.Second,
}

// An outage is what limits a session, as long as it lasts, and shows as silence of the
// peer; a session without one is never limited by it.
func TestOutageIsSeen(t *testing.T) {
	for i, lasts := range outages {
		if !testenv.InFull() && i%3 == 1 {
			continue
		}
		for _, kind := range []string{"data", "datagrams", "requests"} {
			t.Run(fmt.Sprint(kind, " ", lasts), func(t *testing.T) {
				t.Parallel()
				over(t, narrow(fast(20, 2), 100*time.Millisecond, 20*time.Millisecond), patient, patient, func(w *world) {
					w.use(kind)
					time.Sleep(10 * time.Second)
					before := w.server.Stats()
					require.NotEqual(w.t, stats.LimitOutage, before.LimitedBy)
					require.Zero(w.t, before.Limited[stats.LimitOutage], "no outage, no time")
					w.net.Cut(serverHost, clientHost)
					time.Sleep(lasts - time.Millisecond)
					s := w.server.Stats()
					if lasts > 2*time.Second || kind == "data" && lasts > s.RTO+50*time.Millisecond {
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
		w.download(false)
	case "datagrams":
		w.each(20*time.Millisecond, func() error { return w.server.SendDatagram(make([]byte, 100)) })
	case "both ways":
		for _, c := range []*kcp.Conn{w.server, w.client} {
			w.each(20*time.Millisecond, func() error { return c.SendDatagram(make([]byte, 100)) })
		}
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

// The loss of each direction is seen at both ends after ten seconds, of data and of
// datagrams alone, and with every protection.
func TestLossIsSeen(t *testing.T) {
	settings := protections(t)
	settings["FEC"] = func(c kcp.Config) *kcp.Config { c.FEC = kcp.FEC{Data: 10, Parity: 3}; return &c }
	for name, protected := range settings {
		for _, kind := range []string{"data", "datagrams", "both ways"} {
			for i, loss := range [][2]float64{{0, 0}, {0.02, 0}, {0, 0.02}, {0.2, 0}, {0, 0.2}, {0.2, 0.02}} {
				if !testenv.InFull() && name != "plain" && (i+len(name)+len(kind))%3 > 0 {
					continue
				}
				t.Run(fmt.Sprint(name, " ", kind, " ", loss), func(t *testing.T) {
					t.Parallel()
					p := narrow(2, 100*time.Millisecond, 40*time.Millisecond)
					over(t, p, protected(kcp.Config{}), protected(kcp.Config{}), func(w *world) {
						w.use(kind)
						p.down.Loss, p.up.Loss = loss[0], loss[1]
						w.set(p)
						time.Sleep(10 * time.Second)
						down, up := w.net.LinkStats(serverHost, clientHost), w.net.LinkStats(clientHost, serverHost)
						synctest.Wait() // what the links have handed out is read
						s, c := w.server.Stats(), w.client.Stats()
						for what, l := range map[string]struct {
							is   stats.Traffic
							link netsim.LinkStats
						}{
							"down, at the server": {s.Sent, down}, "down, at the client": {c.Received, down},
							"up, at the server": {s.Received, up}, "up, at the client": {c.Sent, up},
						} {
							seen(w.t, what, l.is, l.link)
						}
					})
				})
			}
		}
	}
}

// seen requires that what an end knows of a direction is what has happened on the link.
func seen(t *testing.T, what string, is stats.Traffic, link netsim.LinkStats) {
	t.Helper()
	sent, lost := link.Sent.Packets, link.Lost.Packets+link.Overflow.Packets
	passed := link.Sent // those of this moment may be in one count and not in the other
	if strings.HasSuffix(what, "the client") == strings.HasPrefix(what, "down") {
		passed = link.Delivered
	}
	require.InDelta(t, passed.Packets, is.Packets, 2, what)
	require.InDelta(t, passed.Bytes, is.Bytes, 2*1500, what)
	share := float64(lost) / float64(sent)
	require.Greater(t, float64(is.Counted), 0.5*float64(sent), what)
	require.InDelta(t, share, is.Share(), 0.03+3/float64(sent), "%s: %+v, %+v", what, is, link)
	if sent > 100 && share > 0.1 { // enough to say something of a second
		require.InDelta(t, share, is.RecentShare(), 0.15, "%s: %+v", what, is)
	}
	if share == 0 {
		require.Zero(t, is.Lost, what)
	}
}

// Both ends count a move: of the client's address at its NAT, and of its own, whichever of
// them has something to send. A second one counts once more.
func TestMovesAreSeen(t *testing.T) {
	for name, protected := range protections(t) {
		if name == "plain" {
			continue // does not migrate
		}
		for _, kind := range []string{"data", "requests", "both ways", "idle"} {
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				config := protected(kcp.Config{KeepAlive: 5 * time.Second})
				over(t, narrow(fast(2, 0.5), 100*time.Millisecond, 40*time.Millisecond), config, config, func(w *world) {
					w.use(kind)
					for moves, address := range []string{"10.0.0.2:6000", "10.0.0.2:7000", "10.0.0.2:5000"} {
						time.Sleep(lasting(30*time.Second, 12*time.Second))
						require.Equal(w.t, moves, w.server.Stats().Moves, "the server")
						require.Equal(w.t, moves, w.client.Stats().Moves, "the client")
						require.NoError(w.t, w.sockets[1].Rebind(address))
					}
				})
			})
		}
	}
}

// A trace shows each datagram, as the counters do.
func TestDatagramsAreTraced(t *testing.T) {
	events := make(map[string]map[trace.DatagramEvent]uint64)
	traced := func(end string) *kcp.Config {
		events[end] = make(map[trace.DatagramEvent]uint64)
		return &kcp.Config{Tracer: func(*kcp.Conn) *kcp.Trace {
			return &kcp.Trace{Datagram: func(e trace.DatagramEvent, size int) {
				require.Equal(t, 100, size)
				events[end][e]++
			}}
		}}
	}
	p := delay(20 * time.Millisecond)
	server, client := traced("server"), traced("client")
	server.MaxRate = 10_000
	over(t, p, server, client, func(w *world) {
		p.down.Loss = 0.1
		w.set(p)
		w.each(10*time.Millisecond, func() error { return w.server.SendDatagram(make([]byte, 100)) })
		time.Sleep(10 * time.Second)
		for end, c := range map[string]*kcp.Conn{"server": w.server, "client": w.client} {
			is := c.Stats().Datagrams
			require.Equal(t, is, stats.Datagrams{
				Sent: events[end][trace.DatagramSent], Unsent: events[end][trace.DatagramUnsent],
				Received: events[end][trace.DatagramReceived], Dropped: events[end][trace.DatagramDropped],
			})
		}
		require.Positive(t, events["server"][trace.DatagramUnsent], "beyond the cap")
		require.Positive(t, events["client"][trace.DatagramDropped], "nobody reads")
	})
}

// An idle session tells no more than before, whatever the round-trip time: a keep-alive
// and its answer, of which none is repeated.
func TestIdleSessionsCountLittle(t *testing.T) {
	for _, rtt := range roundTrips {
		t.Run(rtt.String(), func(t *testing.T) {
			t.Parallel()
			over(t, delay(rtt), nil, nil, func(w *world) {
				time.Sleep(time.Minute)
				before := w.net.Stats().Sent
				time.Sleep(time.Hour)
				after := w.net.Stats().Sent
				packets := after.Packets - before.Packets
				require.InDelta(w.t, int64(2*time.Hour/(25*time.Second+rtt)), packets, 4)
				require.LessOrEqual(w.t, after.Bytes-before.Bytes, 48*packets, "PING and COUNT, and no more in the answer")
			})
		})
	}
}
