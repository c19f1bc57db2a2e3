package e2e

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// sentPacket is a packet as it was sent, and when.
type sentPacket struct {
	at   time.Duration
	data []byte
}

// direction is a sender's address and a receiver's.
type direction [2]netip.AddrPort

// packetLog is all packets of a run, by direction.
type packetLog map[direction][]sentPacket

// record runs a scenario in a bubble of its own, and returns what was sent.
func record(t *testing.T, seed uint64, scenario func(t *testing.T, w *world)) packetLog {
	t.Helper()
	log := packetLog{}
	inWorld(t, seed, netsim.LinkConfig{Delay: 20 * time.Millisecond, Jitter: 5 * time.Millisecond, Loss: 0.05, Duplicate: 0.01, Reorder: 0.02}, func(t *testing.T, w *world) {
		w.leads = true
		w.net.SetFilter(func(from, to netip.AddrPort, packet []byte) bool {
			way := direction{from, to}
			log[way] = append(log[way], sentPacket{w.net.Elapsed(), bytes.Clone(packet)})
			return true
		})
		scenario(w.t, w)
	})
	return log
}

// requireSame compares two runs.
func requireSame(t *testing.T, a, b packetLog) {
	t.Helper()
	require.Len(t, b, len(a))
	for way, sent := range a {
		again := b[way]
		for i, p := range sent[:min(len(sent), len(again))] {
			q := again[i]
			require.True(t, p.at == q.at && bytes.Equal(p.data, q.data), "%v: packet %d\n%v %x\n%v %x", way, i, p.at, p.data, q.at, q.data)
		}
		require.Len(t, again, len(sent), "%v", way)
	}
}

// repeats runs a scenario twice, and requires the same packets at the same
// times.
func repeats(t *testing.T, seed uint64, scenario func(t *testing.T, w *world)) {
	t.Helper()
	a := record(t, seed, scenario)
	require.Greater(t, len(slices.Concat(slices.Collect(maps.Values(a))...)), 500)
	requireSame(t, a, record(t, seed, scenario))
}

// repeating is a configuration for one run.
func repeating() *kcp.Config { return &kcp.Config{Repetition: netsim.NewRepetition(1)} }

// transfer sends data both ways over a session, in an outage too.
func transfer(n int, change func(*kcp.Config)) func(t *testing.T, w *world) {
	return func(t *testing.T, w *world) {
		w.net.Play("", "", netsim.Outage(300*time.Millisecond, time.Second))
		config := repeating()
		change(config)
		a, b, _ := w.pair(config, config)
		bothWays(t, a, b, content(1, n), content(2, n/4))
		s, r := streamPair(t, a, b, nil)
		bothWays(t, s, r, content(3, 50_000), content(4, 50_000))
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	}
}

// With Config.Repetition a seed gives the same packets at the same times in each run.
func TestRunsRepeat(t *testing.T) {
	long(t)
	size := int(some(4, 1)) << 20
	for name, change := range map[string]func(*kcp.Config){
		"plain":    func(*kcp.Config) {},
		"messages": func(c *kcp.Config) { c.MessageMode = true; c.Tuning.NoDelay = kcp.NoDelayTurbo },
		"fec":      func(c *kcp.Config) { c.FEC = kcp.FEC{Data: 10, Parity: 3} },
		"aead":     func(c *kcp.Config) { c.Cipher = testAEAD(t) },
		"cfb":      func(c *kcp.Config) { c.Cipher = testCiphers(t, 7)["aes-cfb"] },
	} {
		t.Run(name, func(t *testing.T) { repeats(t, 4, transfer(size, change)) })
	}
	t.Run("sessions", func(t *testing.T) {
		repeats(t, 6, manySessions(func(l *kcp.Listener, done *sync.WaitGroup) {
			serve(l, func(c *kcp.Conn) {
				done.Add(1)
				defer done.Done()
				_, _ = io.Copy(c, c)
			})
		}))
	})
	t.Run("group", func(t *testing.T) { repeats(t, 8, manySessions(serveGroup)) })
}

// manySessions has several clients of one host, of which some share a socket,
// write to one server, which answers, and is closed in the middle of it.
func manySessions(serve func(l *kcp.Listener, done *sync.WaitGroup)) func(t *testing.T, w *world) {
	return func(t *testing.T, w *world) {
		config := repeating()
		l := w.listen(config)
		var done sync.WaitGroup
		done.Go(func() { serve(l, &done) })
		for range 3 {
			e := w.client(config)
			for range 3 {
				c := w.dial(e)
				w.say(c, "*")
				send(t, swallow{c}, content(1, 200<<10))
				done.Go(func() { _, _ = io.Copy(io.Discard, c) })
				time.Sleep(time.Millisecond)
			}
		}
		time.Sleep(700 * time.Millisecond)
		require.NoError(t, l.Endpoint().Close())
		done.Wait()
	}
}

// serveGroup echoes what each session of l brings, by a Group whose events end with l.
func serveGroup(l *kcp.Listener, _ *sync.WaitGroup) {
	g := kcp.NewGroup()
	defer g.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_ = l.AcceptInto(g)
	for events := make([]kcp.Event, 1); ; {
		if _, err := g.Wait(ctx, events); err != nil {
			return
		}
		if e := &events[0]; e.Kind == kcp.EventData {
			_, _ = e.Conn.TryWrite(e.Data)
		}
	}
}

// swallow is a writer without errors.
type swallow struct{ io.Writer }

func (s swallow) Write(b []byte) (int, error) {
	_, _ = s.Writer.Write(b)
	return len(b), nil
}

// A Repetition serves one run, in virtual time.
func TestRepetitionIsRefused(t *testing.T) {
	config := repeating()
	refused := func(err error) {
		t.Helper()
		var invalid *kcp.ConfigError
		require.ErrorAs(t, err, &invalid)
		require.Equal(t, "Repetition", invalid.Field)
	}
	_, err := kcp.Listen("udp", "127.0.0.1:0", config)
	refused(err)
	_, err = kcp.Dial("udp", "127.0.0.1:9", config)
	refused(err)
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		_, err := w.client(config).Dial(context.Background(), udpAddr("10.0.0.9:1"), nil)
		require.Error(t, err)
	})
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		pc, err := w.net.Listen(serverAddr)
		require.NoError(t, err)
		defer pc.Close()
		_, err = kcp.NewEndpoint(pc, config)
		refused(err)
	})
}
