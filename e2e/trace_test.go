package e2e

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/trace"
	"github.com/stretchr/testify/require"
)

// traced counts what the hooks of one session show.
type traced struct {
	conn     *kcp.Conn
	first    map[uint32]int // first transmissions by sn
	acked    map[uint32]int
	again    uint64 // retransmissions
	repeated uint64
	received uint64
	lost     int
	spurious uint64
	samples  int
	states   []trace.SessionState
	err      error
	control  []string
	signals  []string
	metrics  trace.Metrics
	moved    []string
	dropped  []error
}

// tracedSessions has the sessions of an endpoint in the order of their
// beginning.
type tracedSessions struct {
	mu  sync.Mutex
	all []*traced
}

// tracer is a Config.Tracer.
func (s *tracedSessions) tracer(c *kcp.Conn) *kcp.Trace {
	r := &traced{conn: c, first: make(map[uint32]int), acked: make(map[uint32]int)}
	_, _ = c.RemoteAddr(), c.Stats() // no lock is held
	s.mu.Lock()
	s.all = append(s.all, r)
	s.mu.Unlock()
	return &kcp.Trace{
		Sent: func(sn uint32, _, transmissions int, _ uint32) {
			if transmissions == 1 {
				r.first[sn]++
			} else {
				r.again++
			}
		},
		Repeated: func(uint32, int) { r.repeated++ },
		Received: func(uint32, int) { r.received++ },
		RTT:      func(_, _, _ uint32) { r.samples++ },
		Acked:    func(sn uint32, _, _ int) { r.acked[sn]++ },
		Lost:     func(uint32, int, int, trace.LossCause) { r.lost++ },
		Spurious: func(uint32) { r.spurious++ },
		Metrics:  func(m trace.Metrics) { r.metrics = m },
		CongestionState: func(old, state string) {
			if n := len(r.control); n > 0 && r.control[n-1] != old {
				r.control = append(r.control, "gap")
			}
			r.control = append(r.control, state)
		},
		Signal: func(sent bool, name string) {
			way := "<"
			if sent {
				way = ">"
			}
			r.signals = append(r.signals, way+name)
		},
		State:   func(s trace.SessionState, err error) { r.states, r.err = append(r.states, s), err },
		Moved:   func(to string) { r.moved = append(r.moved, to) },
		Dropped: func(_ int, err error) { r.dropped = append(r.dropped, err) },
	}
}

// requireCounts wants the hooks to have shown what the session has counted.
func (r *traced) requireCounts(t *testing.T) {
	t.Helper()
	n := r.conn.Stats()
	require.Len(t, r.first, int(n.SegmentsSent))
	for sn, times := range r.first {
		require.Equal(t, 1, times, "first transmissions of %d", sn)
		require.Equal(t, 1, r.acked[sn], "acknowledgements of %d", sn)
	}
	require.Len(t, r.acked, len(r.first))
	require.Equal(t, n.Retransmits(), r.again)
	require.Equal(t, n.Repeats, r.repeated)
	require.Equal(t, n.SegmentsReceived, r.received)
	require.GreaterOrEqual(t, r.lost, int(r.again))
	require.GreaterOrEqual(t, r.spurious, n.SpuriousRetransmits)
	require.NotContains(t, r.control, "gap")
}

// Hooks know their session, and show everything that it counts.
func TestTracer(t *testing.T) {
	for seed := range fewer(4) {
		inWorld(t, seed, lossy, func(t *testing.T, w *world) {
			var clients, servers tracedSessions
			l := w.listen(&kcp.Config{Tracer: servers.tracer})
			e, _ := w.endpoint("10.0.0.2:0", &kcp.Config{Tracer: clients.tracer})
			for i := range 2 {
				a := w.dial(e)
				b := accepted(t, l)
				require.Same(t, a, clients.all[i].conn)
				require.Same(t, b, servers.all[i].conn)
				bothWays(t, a, b, content(seed, 100_000*(i+1)), content(seed, 50_000))
				require.NoError(t, a.Close())
				require.NoError(t, b.Close())
			}
			w.settle()
			for i, c := range clients.all {
				c.requireCounts(t)
				require.Equal(t, []trace.SessionState{trace.SessionDialled, trace.SessionEstablished, trace.SessionClosing, trace.SessionEnded}, c.states)
				require.Equal(t, []string{">HELLO", ">INFO"}, c.signals[:2])
				for _, s := range []string{"<WELCOME", ">CONFIRM", ">CLOSE"} {
					require.Contains(t, c.signals, s)
				}
				require.Equal(t, "startup", c.control[0])
				require.Positive(t, c.lost)
				require.Positive(t, c.samples)
				require.Positive(t, c.metrics.SRTT)
				s := servers.all[i]
				s.requireCounts(t)
				require.Equal(t, []trace.SessionState{trace.SessionAccepted, trace.SessionEstablished}, s.states[:2])
				require.Equal(t, trace.SessionEnded, s.states[len(s.states)-1])
				require.Contains(t, s.signals, "<HELLO")
				require.Contains(t, s.signals, ">WELCOME")
			}
		})
	}
}

// With TLS the states are the same: established once the handshake is over. The hooks
// show why a session ended, and nothing after that.
func TestTracerTellsTheEnd(t *testing.T) {
	for _, settings := range []kcp.Config{{}, *secured(kcp.Config{})} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			var clients, servers tracedSessions
			client, server := settings, settings
			client.Tracer, server.Tracer = clients.tracer, servers.tracer
			a, b, _ := w.pair(&client, &server)
			bothWays(t, a, b, content(1, 10_000), content(2, 10_000))
			c, s := clients.all[0], servers.all[0]
			require.Equal(t, []trace.SessionState{trace.SessionDialled, trace.SessionEstablished}, c.states)
			require.Equal(t, []trace.SessionState{trace.SessionAccepted, trace.SessionEstablished}, s.states)
			time.Sleep(time.Second)
			require.NoError(t, b.Abort(0, ""))
			require.ErrorIs(t, end(a), kcp.ErrReset)
			require.Equal(t, trace.SessionEnded, c.states[len(c.states)-1])
			require.ErrorIs(t, c.err, kcp.ErrReset)
			require.ErrorIs(t, s.err, net.ErrClosed)
			require.Equal(t, "<ABORT", c.signals[len(c.signals)-1])
			n := len(c.states)
			_ = a.Close()
			w.settle()
			require.Len(t, c.states, n)
			c.requireCounts(t)
			s.requireCounts(t)
		})
	}
}

// A move to another address shows, and so does a packet that is refused.
func TestTracerShowsMovesAndDrops(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		var sessions tracedSessions
		a, b, _, pc := w.movable(&kcp.Config{Cipher: testAEAD(t), Tracer: sessions.tracer})
		require.NoError(t, pc.Rebind("10.0.0.3:6000"))
		bothWays(t, a, b, []byte("there"), []byte("there"))
		require.Equal(t, b, sessions.all[1].conn)
		require.Equal(t, []string{"10.0.0.3:6000"}, sessions.all[1].moved)
	})
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		var sessions tracedSessions
		w.listen(&kcp.Config{Tracer: sessions.tracer})
		w.net.Inject(floodAddr(1), acceptorAddr, packetOf(7, push(0, 0, "x")))
		w.settle()
		w.net.Inject(floodAddr(1), acceptorAddr, packetOf(7, segment(cmdAck, 0, 0, 0, 9, "")))
		w.settle()
		require.Equal(t, []error{kcp.InputUna}, sessions.all[0].dropped)
		require.Equal(t, []trace.SessionState{trace.SessionAccepted}, sessions.all[0].states)
	})
}

// Nothing that peers do makes more records than 100 a second, and what is left
// out is counted.
func TestLoggerIsBounded(t *testing.T) {
	inWorld(t, 2, clean, func(t *testing.T, w *world) {
		var log records
		w.listen(&kcp.Config{Logger: log.Logger(), Limits: kcp.Limits{Backlog: 4000, MaxHalfOpen: 4000}})
		open := func(i int) { w.net.Inject(floodAddr(i), acceptorAddr, packetOf(uint32(i+1), push(0, 0, "x"))) }
		for i := range 1000 {
			open(i)
		}
		w.settle()
		opened := len(log.Of("session opened"))
		require.LessOrEqual(t, opened, 101)
		require.GreaterOrEqual(t, opened, 100)
		time.Sleep(2 * time.Second)
		open(9999)
		w.settle()
		last := log.Of("session opened")
		require.Contains(t, last[len(last)-1], "left_out=900")
	})
}

// Packets under another key are told of at once, and every ten seconds at most.
func TestLoggerTellsOfAnotherKey(t *testing.T) {
	inWorld(t, 2, clean, func(t *testing.T, w *world) {
		var log records
		w.listen(&kcp.Config{Cipher: testAEAD(t), Logger: log.Logger()})
		e := w.client(&kcp.Config{Cipher: testCiphers(t, 6)["aes-gcm"], DialTimeout: 35 * time.Second})
		_, err := e.Dial(context.Background(), udpAddr(serverAddr), nil)
		require.Error(t, err)
		synctest.Wait()
		warnings := log.Of("packets cannot be opened")
		require.GreaterOrEqual(t, len(warnings), 3)
		require.LessOrEqual(t, len(warnings), 4)
		for _, want := range []string{"level=WARN", "packets=1", "last_from=10.0.0.2:"} {
			require.Contains(t, warnings[0], want)
		}
		require.NotContains(t, warnings[1], "packets=1 ")
	})
}

// shown are the streams of segments by sn, as the hooks of a session show them.
type shown struct{ sent, repeated, received, lost map[uint32]uint32 }

// tracer returns hooks that note what Stream names before each segment.
func (r *shown) tracer(t *testing.T) *kcp.Trace {
	*r = shown{map[uint32]uint32{}, map[uint32]uint32{}, map[uint32]uint32{}, map[uint32]uint32{}}
	var sn, stream uint32
	note := func(where map[uint32]uint32, of uint32) {
		if stream > 0 && sn != of {
			t.Errorf("Stream shows %d, and the next hook %d", sn, of)
		}
		if before, ok := where[of]; ok && before != stream {
			t.Errorf("segment %d is of stream %d, and was of %d", of, stream, before)
		}
		where[of], stream = stream, 0
	}
	return &kcp.Trace{
		Stream:   func(of, id uint32) { sn, stream = of, id },
		Sent:     func(sn uint32, _, _ int, _ uint32) { note(r.sent, sn) },
		Repeated: func(sn uint32, _ int) { note(r.repeated, sn) },
		Received: func(sn uint32, _ int) { note(r.received, sn) },
		Lost:     func(sn uint32, _, _ int, _ trace.LossCause) { note(r.lost, sn) },
	}
}

// Stream names the stream of each segment that one has, at both ends, before the hook
// that shows the segment.
func TestTracerNamesStreams(t *testing.T) {
	inWorld(t, 3, lossy, func(t *testing.T, w *world) {
		var sides []*shown
		config := &kcp.Config{Redundancy: 1, Tracer: func(*kcp.Conn) *kcp.Trace {
			sides = append(sides, new(shown))
			return sides[len(sides)-1].tracer(t)
		}}
		a, b, _ := w.pair(config, config)
		want := map[uint32]bool{0: true} // the session's own
		for i := range uint64(3) {
			s := openStream(t, a, nil)
			w.say(s, string(content(i, 30_000)))
			require.NoError(t, s.CloseWrite())
			want[s.ID()] = true
			receive(t, acceptStream(t, b), content(i, 30_000))
			for range 20 {
				w.say(a, string(content(i, 100)))
				receive(t, b, content(i, 100))
			}
		}
		client, server := sides[0], sides[1]
		got := make(map[uint32]bool)
		for sn, stream := range client.sent {
			got[stream] = true
			require.Equal(t, stream, server.received[sn])
		}
		require.Equal(t, want, got)
		for _, again := range []map[uint32]uint32{client.repeated, client.lost} {
			require.NotEmpty(t, again)
			for sn, stream := range again {
				require.Equal(t, client.sent[sn], stream)
			}
		}
	})
}
