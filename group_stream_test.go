package kcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/internal/session"
	"github.com/stretchr/testify/require"
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
			require.NoError(t, s.WriteMessage([]byte("one"), nil))
			require.NoError(t, s.WriteMessage(nil, nil))
			require.NoError(t, s.WriteMessage([]byte("two"), nil))
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
			require.NoError(t, r.WriteMessage([]byte("answer"), &MessageOptions{NoWait: true}))
			answer := make([]byte, 10)
			n, err := s.ReadMessage(answer)
			require.NoError(t, err)
			require.Equal(t, "answer", string(answer[:n]))

			_, err = r.Read(answer)
			require.ErrorIs(t, err, errGrouped)
			_, err = b.AcceptStream(context.Background())
			require.ErrorIs(t, err, errGrouped)
			other := openStream(t, a, c.options)
			require.NoError(t, other.WriteMessage([]byte("dropped"), nil))
			require.NoError(t, other.Reset(7))
			time.Sleep(time.Second)
			all = take(t, g)
			require.Equal(t, []EventKind{EventStream, EventEOF}, kinds(all))
			var reset *StreamError
			require.ErrorAs(t, all[1].Err, &reset)
			require.Equal(t, StreamError{Code: 7, Remote: true}, *reset)

			last := openStream(t, a, c.options)
			require.NoError(t, last.WriteMessage([]byte("last"), nil))
			time.Sleep(time.Second)
			require.NoError(t, a.Abort(0, ""))
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
		require.ErrorIs(t, <-failed, errGrouped)
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
				require.NoError(t, s.WriteMessage([]byte{byte(s.ID())}, nil))
			}
		}
		for range 4 {
			require.NoError(t, a.WriteMessage([]byte{0}, nil))
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

// A call that writes goes on while nobody takes the events that other streams have room.
func TestGroupLeavesRoomToCalls(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, b, g := w.withStreams(&Config{WriteBuffer: 4096, StreamWriteBuffer: 4096})
		go func() {
			for s, err := a.AcceptStream(t.Context()); err == nil; s, err = a.AcceptStream(t.Context()) {
				go func() { _, _ = io.Copy(io.Discard, s) }()
			}
		}()
		const streams = 12
		for range streams {
			s := openStream(t, b, nil)
			for err := error(nil); !errors.Is(err, ErrWouldBlock); {
				_, err = s.TryWrite(make([]byte, 3000))
			}
		}
		begun := time.Now()
		_, err := openStream(t, b, nil).Write(make([]byte, 100_000))
		require.NoError(t, err)
		require.Less(t, time.Since(begun), 5*time.Second)
		require.Len(t, take(t, g), streams)
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
		require.ErrorIs(t, batch[5].Err, session.ErrNotMessageMode)
		receive(t, a, []byte("d"))
		receive(t, acceptStream(t, a), []byte("ab"))
		toLimited := acceptStream(t, a)
		receive(t, toLimited, []byte("c"))

		w.deaf()
		late := []Outgoing{{Stream: limited, Data: []byte("late"), Lifetime: 100 * time.Millisecond}}
		require.Equal(t, 1, g.Send(late))
		time.Sleep(200 * time.Millisecond)
		w.net.SetFilter(nil)
		require.NoError(t, limited.WriteMessage([]byte("fresh"), &MessageOptions{NoWait: true}))
		r := make([]byte, 10)
		n, err := toLimited.ReadMessage(r)
		require.NoError(t, err)
		require.Equal(t, "fresh", string(r[:n]), "what is late is given up")
	})
}
