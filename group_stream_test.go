package kcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/testenv"
)

// withStreams returns the two ends of a session, of which the second is in a group
// that has the events of streams.
func (w *world) withStreams(config *Config) (a, b *Conn, g *Group) {
	w.t.Helper()
	a, b, _ = w.pair(config, config)
	g = NewGroup()
	g.ReportStreams()
	require.NoError(w.t, g.Add(b))
	return a, b, g
}

// The events of a stream are in order: it was opened, what has arrived, its end. The
// kind says what has boundaries.
func TestGroupStreams(t *testing.T) {
	for _, c := range []struct {
		options  *StreamOptions
		messages bool // Config.MessageMode
		want     EventKind
	}{
		{nil, false, EventData},
		{nil, true, EventMessage},
		{&StreamOptions{Unordered: true}, false, EventMessage},
		{&StreamOptions{MaxLifetime: time.Hour}, false, EventMessage},
	} {
		inWorld(t, 0, clean, func(t *testing.T, w *world) {
			a, b, g := w.withStreams(&Config{MessageMode: c.messages})
			s := openStream(t, a, c.options)
			require.NoError(t, s.WriteMessage([]byte("one")))
			require.NoError(t, s.WriteMessage(nil))
			require.NoError(t, s.WriteMessage([]byte("two")))
			require.NoError(t, s.CloseWrite())
			time.Sleep(time.Second)
			all := take(t, g)
			want := []EventKind{EventStream, EventMessage, EventMessage, EventMessage, EventEOF}
			texts := []string{"", "one", "", "two", ""}
			if c.want == EventData {
				want, texts = []EventKind{EventStream, EventData, EventEOF}, []string{"", "onetwo", ""}
			}
			require.Equal(t, want, kinds(all))
			for i, e := range all {
				require.Same(t, b, e.Conn)
				require.Equal(t, s.ID(), e.Stream.ID())
				require.Equal(t, texts[i], string(e.data))
			}
			require.ErrorIs(t, all[len(all)-1].Err, io.EOF)
			r := all[0].Stream
			require.NoError(t, r.TryWriteMessage([]byte("answer")))
			answer := make([]byte, 10)
			n, err := s.ReadMessage(answer)
			require.NoError(t, err)
			require.Equal(t, "answer", string(answer[:n]))

			_, err = r.Read(answer)
			require.ErrorIs(t, err, ErrGrouped)
			_, err = b.AcceptStream(context.Background())
			require.ErrorIs(t, err, ErrGrouped)
			other := openStream(t, a, c.options)
			require.NoError(t, other.WriteMessage([]byte("dropped")))
			require.NoError(t, other.Reset(7))
			time.Sleep(time.Second)
			all = take(t, g)
			require.Equal(t, []EventKind{EventStream, EventEOF}, kinds(all))
			var reset *StreamError
			require.ErrorAs(t, all[1].Err, &reset)
			require.Equal(t, StreamError{Code: 7, Remote: true}, *reset)

			last := openStream(t, a, c.options)
			require.NoError(t, last.WriteMessage([]byte("last")))
			time.Sleep(time.Second)
			require.NoError(t, a.Abort())
			time.Sleep(time.Second)
			all = take(t, g)
			require.Equal(t, []EventKind{EventStream, c.want, EventEnded}, kinds(all))
			require.Equal(t, "last", string(all[1].data))
			require.Nil(t, all[2].Stream)
		})
	}
}

// Streams of a group that has not asked for their events are read as ever. What is
// there when a session joins a group that has is for the group, and for the calls
// again once it is out.
func TestGroupStreamsAreAskedFor(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, b, g := w.grouped(nil)
		s, r := streamPair(t, a, b, nil)
		send(t, s, []byte("ever"))
		receive(t, r, []byte("ever"))
		send(t, s, []byte("there"))
		later := openStream(t, a, nil)
		send(t, later, []byte("not accepted"))
		time.Sleep(time.Second)
		require.Empty(t, take(t, g))
		require.NoError(t, g.Remove(b))

		failed := make(chan error, 1)
		another := openStream(t, b, nil)
		go func() {
			_, err := another.Read(make([]byte, 1))
			failed <- err
		}()
		synctest.Wait()
		g.ReportStreams()
		require.NoError(t, g.Add(b))
		require.ErrorIs(t, <-failed, ErrGrouped)
		all := take(t, g)
		require.Equal(t, []EventKind{EventStream, EventData, EventData}, kinds(all))
		require.Equal(t, later.ID(), all[0].Stream.ID())
		for _, e := range all[1:] {
			want := "there"
			if e.Stream != r {
				want = "not accepted"
			}
			require.Equal(t, want, string(e.data))
		}
		send(t, s, []byte("more"))
		time.Sleep(time.Second)
		require.NoError(t, g.Remove(b))
		require.Empty(t, take(t, g))
		require.Nil(t, b.calls.ready.First())
		receive(t, r, []byte("more"))
	})
}

// The end of a stream that is over while the session is in no group is an event of the
// next one, unless a call has read it, or the stream was closed.
func TestGroupStreamEndsBetweenGroups(t *testing.T) {
	ends := map[string]func(b *Conn, r *Stream, g *Group, end func()){
		"before Remove": func(b *Conn, r *Stream, g *Group, end func()) { end(); require.NoError(t, g.Remove(b)) },
		"after Remove":  func(b *Conn, r *Stream, g *Group, end func()) { require.NoError(t, g.Remove(b)); end() },
		"read": func(b *Conn, r *Stream, g *Group, end func()) {
			require.NoError(t, g.Remove(b))
			end()
			_, err := r.Read(make([]byte, 1))
			require.Equal(t, io.EOF, err)
		},
		"closed": func(b *Conn, r *Stream, g *Group, end func()) {
			end()
			require.NoError(t, g.Remove(b))
			require.NoError(t, r.Close())
		},
		"reset": func(b *Conn, r *Stream, g *Group, end func()) {
			require.NoError(t, g.Remove(b))
			end()
			require.NoError(t, r.Reset(1))
		},
	}
	for name, leave := range ends {
		inWorld(t, 0, clean, func(t *testing.T, w *world) {
			a, b, g := w.withStreams(nil)
			s := openStream(t, a, nil)
			time.Sleep(time.Second)
			r := takeOne(t, g, EventStream).Stream
			require.NoError(t, r.CloseWrite())
			leave(b, r, g, func() {
				require.NoError(t, s.CloseWrite())
				time.Sleep(time.Second)
				b.mu.Lock()
				defer b.mu.Unlock()
				require.True(t, r.state.Gone())
			})
			next := NewGroup()
			next.ReportStreams()
			require.NoError(t, next.Add(b))
			if name == "before Remove" || name == "after Remove" {
				e := takeOne(t, next, EventEOF)
				require.Same(t, r, e.Stream, name)
				require.ErrorIs(t, e.Err, io.EOF)
			}
			require.Empty(t, take(t, next), name)
			require.Nil(t, firstReady(b))
		})
	}
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, b, g := w.withStreams(nil)
		s := openStream(t, a, nil)
		time.Sleep(time.Second)
		require.NoError(t, takeOne(t, g, EventStream).Stream.CloseWrite())
		require.NoError(t, g.Remove(b))
		require.NoError(t, s.CloseWrite())
		time.Sleep(time.Second)
		require.NotNil(t, firstReady(b))
		require.NoError(t, b.Close())
		require.Nil(t, firstReady(b), "the session is closed")
	})
}

// firstReady returns the first stream of c that may have an event.
func firstReady(c *Conn) *Stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls.ready.First()
}

// Streams of a session take turns with each other and with the session itself.
func TestGroupStreamsAreFair(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, _, g := w.withStreams(&Config{MessageMode: true})
		for range 3 {
			s := openStream(t, a, nil)
			for range 4 {
				require.NoError(t, s.WriteMessage([]byte{byte(s.ID())}))
			}
		}
		for range 4 {
			require.NoError(t, a.WriteMessage([]byte{0}))
		}
		time.Sleep(time.Second)
		var streams []byte
		own := 0
		for i, e := range take(t, g) {
			switch {
			case e.Kind == EventMessage && e.Stream == nil:
				own++
				require.LessOrEqual(t, i, 2*own, "each second one is the session's")
			case e.Kind == EventMessage:
				require.Equal(t, byte(e.Stream.ID()), e.data[0])
				streams = append(streams, e.data[0])
			}
		}
		require.Equal(t, 4, own)
		require.Equal(t, bytes.Repeat([]byte{1, 3, 5}, 4), streams)
	})
}

// EventWritable of a stream follows a write without room, once, and also if no write
// is possible any more. A closed stream has no events, and waits for no room.
func TestGroupStreamWritable(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, b, g := w.withStreams(&Config{StreamWriteBuffer: 192 << 10}) // most of it waits for credit
		_, err := b.TryOpenStream(nil)
		require.NoError(t, err)
		s, err := b.TryOpenStream(nil)
		require.NoError(t, err)
		fill := func() (n int) {
			for {
				out := []Outgoing{{Stream: s, Data: content(1, 3000)}}
				g.Send(out)
				if n += out[0].N; out[0].Err != nil {
					require.Same(t, ErrWouldBlock, out[0].Err)
					return n
				}
			}
		}
		n := fill()
		acceptStream(t, a)
		r := acceptStream(t, a)
		time.Sleep(time.Second)
		require.Same(t, s, takeOne(t, g, EventWritable).Stream) // what left for credit left room
		n += fill()
		time.Sleep(time.Second)
		require.Empty(t, take(t, g), "nobody reads")
		_, err = io.ReadFull(r, make([]byte, n))
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.Same(t, s, takeOne(t, g, EventWritable).Stream)
		require.Empty(t, take(t, g))

		fill()
		require.NoError(t, r.Close())
		time.Sleep(time.Second)
		all := take(t, g)
		require.Equal(t, []EventKind{EventEOF, EventWritable}, kinds(all))
		_, err = s.TryWrite([]byte{1})
		var stopped *StreamError
		require.ErrorAs(t, err, &stopped)

		s, err = b.TryOpenStream(nil)
		require.NoError(t, err)
		fill()
		require.NoError(t, s.Close())
		time.Sleep(time.Second)
		require.Empty(t, take(t, g))
		require.NoError(t, acceptStream(t, a).Close())
		time.Sleep(time.Second)
		require.Nil(t, s.writer)
	})
}

// A stream whose reader has come late goes on as soon as the group has taken what there
// was, though no other packet is due.
func TestGroupStreamCredit(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, _, g := w.withStreams(&Config{StreamReceiveBuffer: 64 << 10})
		s := openStream(t, a, nil)
		data := content(2, 1<<20)
		go func() { _, _ = s.Write(data) }()
		var got []byte
		start := time.Now()
		for len(got) < len(data) {
			time.Sleep(200 * time.Millisecond)
			before := len(got)
			for _, e := range take(t, g) {
				got = append(got, e.data...)
			}
			require.Greater(t, len(got)-before, min(32<<10, len(data)-before-1), "after %v", time.Since(start))
		}
		require.True(t, bytes.Equal(data, got))
		require.Empty(t, take(t, g))
	})
}

// Send writes to streams, each message with its lifetime, and in the packets of the
// session.
func TestGroupSendToStreams(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, b, g := w.withStreams(nil)
		bytesOf, err := b.TryOpenStream(nil)
		require.NoError(t, err)
		limited, err := b.TryOpenStream(&StreamOptions{MaxLifetime: time.Hour})
		require.NoError(t, err)
		batch := []Outgoing{
			{Stream: bytesOf, Data: []byte("a")}, {Stream: bytesOf, Data: []byte("b")},
			{Stream: limited, Data: []byte("c")}, {Conn: b, Data: []byte("d")},
			{Stream: limited, Lifetime: -1}, {Conn: b, Lifetime: time.Second},
		}
		before := b.ep.Stats().PacketsSent
		require.Equal(t, 4, g.Send(batch))
		require.EqualValues(t, 1, b.ep.Stats().PacketsSent-before)
		requireOption(t, OptionError{"MessageOptions.Lifetime", time.Duration(-1), "must be in [0s, 1193h2m47.295s]"}, batch[4].Err)
		require.ErrorIs(t, batch[5].Err, ErrNotMessageMode)
		receive(t, a, []byte("d"))
		receive(t, acceptStream(t, a), []byte("ab"))
		toLimited := acceptStream(t, a)
		receive(t, toLimited, []byte("c"))

		w.deaf()
		late := []Outgoing{{Stream: limited, Data: []byte("late"), Lifetime: 100 * time.Millisecond}}
		require.Equal(t, 1, g.Send(late))
		time.Sleep(200 * time.Millisecond)
		w.net.SetFilter(nil)
		require.NoError(t, limited.TryWriteMessage([]byte("fresh")))
		r := make([]byte, 10)
		n, err := toLimited.ReadMessage(r)
		require.NoError(t, err)
		require.Equal(t, "fresh", string(r[:n]), "what is late is given up")
	})
}

// stateRun is a server that sends state to sessions: larger than a datagram, on a
// stream each, with a lifetime, 20 times a second, from one loop.
type stateRun struct {
	seqs       map[*Conn][]uint32 // that have arrived, by the session at the client
	oldest     time.Duration      // age of what has arrived latest
	abandoned  uint64
	goroutines int // while it runs
}

const (
	stateSize     = 3 << 10
	stateLifetime = 100 * time.Millisecond
	stateTicks    = 60
)

// runState runs it. Of 10 sessions 3 lose 5 % of their packets, and one is cut off
// for a second.
func runState(t *testing.T, w *world, sessions int) (r stateRun, hostOf func(c *Conn) string) {
	server, clients := NewGroup(), NewGroup()
	server.ReportStreams()
	clients.ReportStreams()
	require.NoError(t, w.listen(nil).AcceptInto(server))
	hosts := []string{"10.0.0.2", "10.0.0.3", "10.0.0.4"}
	var ends [3]*Endpoint
	for i, host := range hosts {
		ends[i], _ = w.endpoint(host+":0", nil)
	}
	at := func(c *Conn) string { return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().String() }
	var streams []*Stream
	for i := range sessions {
		c := w.dial(ends[[]int{0, 1, 0, 1, 0, 1, 0, 2, 0, 0}[i%10]])
		require.NoError(t, clients.Add(c))
		time.Sleep(100 * time.Millisecond)
		s, err := takeOne(t, server, EventAccepted).Conn.TryOpenStream(nil)
		require.NoError(t, err)
		streams = append(streams, s)
	}
	require.Len(t, streams, sessions)
	start := time.Now()
	rng := rand.New(rand.NewPCG(1, 2))
	w.net.SetFilter(func(from, to netip.AddrPort, _ []byte) bool {
		in := func(host string) bool { return from.Addr().String() == host || to.Addr().String() == host }
		cut := time.Since(start) > time.Second && time.Since(start) < 2*time.Second
		return !(in(hosts[1]) && rng.IntN(100) < 5) && !(in(hosts[2]) && cut)
	})
	r.seqs = make(map[*Conn][]uint32)
	batch := make([]Outgoing, sessions)
	for tick := range uint32(stateTicks) {
		state := binary.LittleEndian.AppendUint32(nil, tick)
		state = append(state, content(uint64(tick), stateSize-4)...)
		for i, s := range streams {
			batch[i] = Outgoing{Stream: s, Data: state, Lifetime: stateLifetime}
		}
		require.Equal(t, sessions, server.Send(batch))
		time.Sleep(50 * time.Millisecond)
		r.note(t, clients, start)
	}
	r.goroutines = testenv.GoroutinesOfBubble()
	for range 20 {
		time.Sleep(50 * time.Millisecond)
		r.note(t, clients, start)
	}
	for _, s := range streams {
		r.abandoned += s.Stats().Abandoned
	}
	return r, at
}

// note takes what has arrived, and compares it with what was sent.
func (r *stateRun) note(t *testing.T, g *Group, start time.Time) {
	for _, e := range take(t, g) {
		if e.Kind != EventData && e.Kind != EventMessage {
			continue
		}
		for b := e.data; len(b) > 0; b = b[stateSize:] {
			tick := binary.LittleEndian.Uint32(b)
			require.Equal(t, content(uint64(tick), stateSize-4), b[4:stateSize])
			r.seqs[e.Conn] = append(r.seqs[e.Conn], tick)
			r.oldest = max(r.oldest, time.Since(start)-time.Duration(tick)*50*time.Millisecond)
		}
	}
}

// State larger than a datagram goes to many sessions from one loop, whatever they
// lose: what is late is dropped, and what is new arrives, in order. The number of
// goroutines does not depend on that of the sessions.
func TestGroupSendsState(t *testing.T) {
	var goroutines []int
	most := 200
	if testing.Short() {
		most = 60
	}
	for _, sessions := range []int{20, most} {
		inWorld(t, 5, clean, func(t *testing.T, w *world) {
			r, host := runState(t, w, sessions)
			goroutines = append(goroutines, r.goroutines)
			require.Len(t, r.seqs, sessions)
			least := map[string]int{"10.0.0.2": stateTicks, "10.0.0.3": stateTicks * 8 / 10, "10.0.0.4": 30}
			most := map[string]int{"10.0.0.2": stateTicks, "10.0.0.3": stateTicks, "10.0.0.4": 45}
			for c, seqs := range r.seqs {
				require.IsIncreasing(t, seqs)
				require.GreaterOrEqual(t, len(seqs), least[host(c)], host(c))
				require.LessOrEqual(t, len(seqs), most[host(c)], host(c))
				require.GreaterOrEqual(t, seqs[len(seqs)-1], uint32(stateTicks-3), host(c))
			}
			require.GreaterOrEqual(t, r.abandoned, uint64(sessions/10*15))
			t.Logf("%d sessions: %d messages given up, the latest %v old, %d goroutines", sessions, r.abandoned, r.oldest, r.goroutines)
			require.Less(t, r.oldest, 250*time.Millisecond)
		})
	}
	require.InDelta(t, goroutines[0], goroutines[1], 4)
}
