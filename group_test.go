package kcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/arqnet/kcp/crypt"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// done is a context that has ended: with it Wait does not block.
func done() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// took is an event with its own copy of the data.
type took struct {
	Event
	data []byte
}

// take returns all events that are there.
func take(t *testing.T, g *Group) (all []took) {
	t.Helper()
	events := make([]Event, 4)
	for {
		n, err := g.Wait(done(), events)
		if n == 0 {
			require.ErrorIs(t, err, context.Canceled)
			return all
		}
		require.NoError(t, err)
		for _, e := range events[:n] {
			all = append(all, took{e, bytes.Clone(e.Data)})
		}
	}
}

// kinds returns the kinds of events.
func kinds(events []took) (all []EventKind) {
	for _, e := range events {
		all = append(all, e.Kind)
	}
	return all
}

// takeOne returns the only event that is there.
func takeOne(t *testing.T, g *Group, kind EventKind) took {
	t.Helper()
	all := take(t, g)
	require.Equal(t, []EventKind{kind}, kinds(all))
	return all[0]
}

// echoes serves the sessions of a group: it sends back all that arrives, and
// closes what has ended.
type echoes struct {
	t       *testing.T
	group   *Group
	waiting map[*Conn][][]byte // what did not fit into the write buffer
	ends    map[*Conn]error
	begun   map[*Conn]bool
	eof     map[*Conn]bool
}

func newEchoes(t *testing.T, g *Group) *echoes {
	return &echoes{t, g, make(map[*Conn][][]byte), make(map[*Conn]error), make(map[*Conn]bool), make(map[*Conn]bool)}
}

// run handles events until the group is closed.
func (s *echoes) run() {
	events := make([]Event, 16)
	for {
		n, err := s.group.Wait(context.Background(), events)
		if err != nil {
			assert.ErrorIs(s.t, err, net.ErrClosed)
			return
		}
		for _, e := range events[:n] {
			s.handle(e)
		}
	}
}

func (s *echoes) handle(e Event) {
	_, ended := s.ends[e.Conn]
	assert.False(s.t, ended, "%v after the end", e.Kind)
	switch e.Kind {
	case EventAccepted:
		assert.False(s.t, s.begun[e.Conn])
		s.begun[e.Conn] = true
	case EventData, EventMessage:
		s.waiting[e.Conn] = append(s.waiting[e.Conn], bytes.Clone(e.Data))
	case EventDatagram:
		assert.NoError(s.t, e.Conn.SendDatagram(e.Data))
	case EventEOF:
		s.eof[e.Conn] = true
	case EventEnded:
		s.ends[e.Conn] = e.Err
		_ = e.Conn.Close() // the peer may be gone
		return
	}
	s.flush(e.Conn)
}

func (s *echoes) flush(c *Conn) {
	for len(s.waiting[c]) > 0 {
		out := []Outgoing{{Conn: c, Data: s.waiting[c][0]}}
		s.group.Send(out)
		if out[0].Err != nil && out[0].Err != ErrWouldBlock {
			return
		}
		if out[0].Err != nil {
			s.waiting[c][0] = s.waiting[c][0][out[0].N:]
			return
		}
		s.waiting[c] = s.waiting[c][1:]
	}
	if s.eof[c] {
		delete(s.eof, c) // another event may come before the end
		assert.NoError(s.t, c.Close())
	}
}

func groupCipher(t *testing.T) crypt.Cipher {
	t.Helper()
	aead, err := crypt.AESGCM(bytes.Repeat([]byte{7}, 16))
	require.NoError(t, err)
	return aead
}

// A group serves streams with more data than the write buffer takes, over links
// that lose packets, until both ends have closed.
func TestGroupEchoesStreams(t *testing.T) {
	for seed := range fewer(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inWorld(t, seed, lossy, func(t *testing.T, w *world) {
				config := Config{WriteBuffer: 16 << 10}
				if seed%4 >= 2 {
					config.Cipher = groupCipher(t)
				}
				g := NewGroup()
				l := w.listen(&config)
				require.NoError(t, l.AcceptInto(g))
				s := newEchoes(t, g)
				var server, clients sync.WaitGroup
				server.Go(s.run)
				e, _ := w.endpoint("10.0.0.2:0", &config)
				const sessions = 7
				for i := range uint64(sessions) {
					clients.Go(func() {
						c := w.dial(e)
						data := content(seed*100+i, 1+int(i)*20_000)
						go func() {
							_, err := c.Write(data)
							assert.NoError(t, err)
							assert.NoError(t, c.CloseWrite())
						}()
						got, err := io.ReadAll(c)
						assert.NoError(t, err)
						assert.True(t, bytes.Equal(data, got), "%d bytes, want %d", len(got), len(data))
						assert.NoError(t, c.Close())
					})
				}
				clients.Wait()
				w.settle()
				require.Zero(t, g.Len())
				require.NoError(t, g.Close())
				server.Wait()
				require.Len(t, s.ends, sessions)
				for _, err := range s.ends {
					require.ErrorIs(t, err, net.ErrClosed) // of the server's own Close
				}
			})
		})
	}
}

// Messages keep their boundaries, whatever their size.
func TestGroupMessages(t *testing.T) {
	inWorld(t, 1, lossy, func(t *testing.T, w *world) {
		config := Config{MessageMode: true, ReceiveWindow: 512}
		g := NewGroup()
		require.NoError(t, w.listen(&config).AcceptInto(g))
		s := newEchoes(t, g)
		var server sync.WaitGroup
		server.Go(s.run)
		e, _ := w.endpoint("10.0.0.2:0", &config)
		c := w.dial(e)
		var messages [][]byte
		for i, size := range []int{0, 1, 5000, 0, 150_000, 64, 100_000, 3} {
			messages = append(messages, content(uint64(i), size))
		}
		go func() {
			for _, m := range messages {
				assert.NoError(t, c.WriteMessage(m))
			}
		}()
		b := make([]byte, 200_000)
		for _, m := range messages {
			n, err := c.ReadMessage(b)
			require.NoError(t, err)
			require.True(t, bytes.Equal(m, b[:n]), "%d bytes, want %d", n, len(m))
		}
		require.NoError(t, c.Close())
		w.settle()
		require.NoError(t, g.Close())
		server.Wait()
		for _, err := range s.ends {
			require.Equal(t, io.EOF, err)
		}
		require.Len(t, s.ends, 1)
	})
}

// grouped returns the two ends of a session, of which b is in a group.
func (w *world) grouped(config *Config) (a, b *Conn, g *Group) {
	w.t.Helper()
	a, b, _ = w.pair(config, config)
	g = NewGroup()
	require.NoError(w.t, g.Add(b))
	return a, b, g
}

// Datagrams and messages of a session take turns.
func TestGroupDatagrams(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, b, g := w.grouped(&Config{MessageMode: true})
		for i := range byte(5) {
			require.NoError(t, a.SendDatagram([]byte{'d', i}))
			require.NoError(t, a.WriteMessage([]byte{'m', i}))
		}
		time.Sleep(time.Second)
		all := take(t, g)
		require.Len(t, all, 10)
		for i, e := range all {
			require.Same(t, b, e.Conn)
			if i%2 == 0 {
				require.Equal(t, EventDatagram, e.Kind)
				require.Equal(t, []byte{'d', byte(i / 2)}, e.data)
			} else {
				require.Equal(t, EventMessage, e.Kind)
				require.Equal(t, []byte{'m', byte(i / 2)}, e.data)
			}
		}
	})
}

// How sessions end, as the group tells it: once, and after all data.
func TestGroupEnds(t *testing.T) {
	for _, end := range []struct {
		name string
		do   func(w *world, a, b *Conn)
		want []EventKind
		err  error
	}{
		{"peer closes", func(_ *world, a, _ *Conn) { go a.Close() }, []EventKind{EventData, EventEnded}, io.EOF},
		{"peer aborts", func(_ *world, a, _ *Conn) { time.Sleep(time.Second); _ = a.Abort() }, []EventKind{EventData, EventEnded}, ErrReset},
		{"peer half-closes", func(_ *world, a, _ *Conn) { _ = a.CloseWrite() }, []EventKind{EventData, EventEOF}, nil},
		{"peer half-closes and closes", func(_ *world, a, _ *Conn) { _ = a.CloseWrite(); time.Sleep(time.Second); _ = a.Close() }, []EventKind{EventData, EventEnded}, io.EOF},
		{"close", func(_ *world, _, b *Conn) { _ = b.Close() }, []EventKind{EventEnded}, net.ErrClosed},
		{"abort", func(_ *world, _, b *Conn) { _ = b.Abort() }, []EventKind{EventEnded}, net.ErrClosed},
		{"endpoint closed", func(_ *world, _, b *Conn) { time.Sleep(time.Second); _ = b.ep.Close() }, []EventKind{EventData, EventEnded}, net.ErrClosed},
		{"peer lost", func(w *world, a, b *Conn) {
			time.Sleep(time.Second)
			w.net.Cut("10.0.0.1", "10.0.0.2")
			time.Sleep(2 * time.Minute)
		}, []EventKind{EventData, EventEnded}, &PeerLostError{}},
	} {
		t.Run(end.name, func(t *testing.T) {
			inWorld(t, 0, clean, func(t *testing.T, w *world) {
				a, b, g := w.grouped(nil)
				_, err := a.Write([]byte("last words"))
				require.NoError(t, err)
				end.do(w, a, b)
				time.Sleep(3 * time.Second)
				all := take(t, g)
				require.Equal(t, end.want, kinds(all))
				last := all[len(all)-1]
				require.Same(t, b, last.Conn)
				if all[0].Kind == EventData {
					require.Equal(t, "last words", string(all[0].data))
				}
				if last.Kind == EventEOF {
					require.Equal(t, io.EOF, last.Err)
					require.Equal(t, 1, g.Len())
					_, err = b.Write([]byte("answer"))
					require.NoError(t, err)
					receive(t, a, []byte("answer"))
					require.NoError(t, a.Abort())
					time.Sleep(time.Second)
					require.ErrorIs(t, takeOne(t, g, EventEnded).Err, ErrReset)
				} else if lost := (&PeerLostError{}); errors.As(end.err, &lost) {
					require.ErrorAs(t, last.Err, &lost)
				} else {
					require.ErrorIs(t, last.Err, end.err)
				}
				require.Zero(t, g.Len())
				require.ErrorIs(t, g.Remove(b), ErrNotGrouped)
				time.Sleep(time.Minute)
				require.Empty(t, take(t, g))
			})
		})
	}
}

// The end of a stream within a message, and after an EOF the peer's CLOSE.
func TestGroupEOFThenEnd(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, b, g := w.grouped(nil)
		require.NoError(t, a.CloseWrite())
		time.Sleep(time.Second)
		require.Equal(t, io.EOF, takeOne(t, g, EventEOF).Err)
		require.NoError(t, a.SendDatagram([]byte("late")))
		time.Sleep(time.Second)
		require.Equal(t, "late", string(takeOne(t, g, EventDatagram).data))
		require.NoError(t, a.Close())
		time.Sleep(time.Second)
		require.Equal(t, io.EOF, takeOne(t, g, EventEnded).Err)
		_ = b
	})
}

// What happens to sessions that are read in another way when they come into a
// group, and when they go.
func TestGroupAddRemove(t *testing.T) {
	for seed := range uint64(2) {
		inWorld(t, seed, clean, func(t *testing.T, w *world) {
			a, b, _ := w.pair(&Config{}, &Config{})
			g, other := NewGroup(), NewGroup()
			require.ErrorIs(t, g.Remove(b), ErrNotGrouped)
			errs := make(chan error, 2)
			go func() {
				_, err := b.Read(make([]byte, 10))
				errs <- err
			}()
			go func() {
				_, err := b.ReceiveDatagram(context.Background())
				errs <- err
			}()
			time.Sleep(time.Second)
			require.NoError(t, g.Add(b))
			require.ErrorIs(t, <-errs, ErrGrouped)
			require.ErrorIs(t, <-errs, ErrGrouped)
			_, err := b.Read(make([]byte, 10))
			require.ErrorIs(t, err, ErrGrouped)
			_, err = b.ReadMessage(make([]byte, 10))
			require.ErrorIs(t, err, ErrGrouped)
			_, err = b.ReceiveDatagram(context.Background())
			require.ErrorIs(t, err, ErrGrouped)
			for _, group := range []*Group{g, other} {
				err := group.Add(b)
				require.ErrorIs(t, err, ErrGrouped)
				require.EqualError(t, err, "add kcp 10.0.0.1:4000->"+b.RemoteAddr().String()+": kcp: already in a Group")
			}
			require.ErrorIs(t, other.Remove(b), ErrNotGrouped)
			require.Equal(t, 1, g.Len())

			_, err = a.Write([]byte("one"))
			require.NoError(t, err)
			time.Sleep(time.Second)
			require.NoError(t, g.Remove(b))
			require.Zero(t, g.Len())
			require.Empty(t, take(t, g))
			receive(t, b, []byte("one"))

			_, err = a.Write([]byte("two"))
			require.NoError(t, err)
			time.Sleep(time.Second)
			require.NoError(t, other.Add(b)) // what is there comes at once
			require.Equal(t, "two", string(takeOne(t, other, EventData).data))
			require.NoError(t, b.SetReadDeadline(time.Now().Add(-time.Second)))
			_, err = a.Write([]byte("three"))
			require.NoError(t, err)
			require.NoError(t, a.Close())
			require.NoError(t, other.Remove(b))
			time.Sleep(time.Second)
			require.NoError(t, g.Add(b)) // it has ended
			require.Equal(t, []EventKind{EventData, EventEnded}, kinds(take(t, g)))
			require.NoError(t, g.Add(b)) // it ends again
			require.Equal(t, io.EOF, takeOne(t, g, EventEnded).Err)
			require.NoError(t, b.Close())
			require.ErrorIs(t, g.Add(b), net.ErrClosed)
		})
	}
}

// Wait: a poll, one call at a time, nothing wanted, and the end of the group.
func TestGroupWait(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, b, g := w.grouped(nil)
		n, err := g.Wait(context.Background(), nil)
		require.NoError(t, err)
		require.Zero(t, n)
		events := make([]Event, 2)
		results := make(chan error)
		ctx, cancel := context.WithCancel(context.Background())
		wait := func() {
			_, err := g.Wait(ctx, events)
			results <- err
		}
		go wait()
		synctest.Wait()
		_, err = g.Wait(done(), make([]Event, 1))
		require.ErrorIs(t, err, ErrGroupInUse)
		require.ErrorIs(t, g.Serve(done(), func(Event) {}), ErrGroupInUse)
		_, err = a.Write([]byte("data"))
		require.NoError(t, err)
		require.NoError(t, <-results)
		require.Equal(t, "data", string(events[0].Data))
		go wait()
		synctest.Wait()
		cancel()
		require.Equal(t, context.Canceled, <-results)

		_, err = a.Write([]byte("more"))
		require.NoError(t, err)
		time.Sleep(time.Second)
		ctx = context.Background()
		require.Equal(t, "more", string(takeOne(t, g, EventData).data)) // the context is done
		go wait()
		synctest.Wait()
		require.NoError(t, g.Close())
		require.ErrorIs(t, <-results, net.ErrClosed)
		_, err = g.Wait(ctx, events)
		require.ErrorIs(t, err, net.ErrClosed)
		require.ErrorIs(t, g.Close(), net.ErrClosed)
		require.ErrorIs(t, g.Serve(ctx, func(Event) {}), net.ErrClosed)
		require.ErrorIs(t, g.Remove(b), ErrNotGrouped)
		require.ErrorIs(t, g.Add(b), net.ErrClosed)
		bothWays(t, a, b, []byte("on"), []byte("goes")) // without the group
	})
}

// A session with much data takes turns with the others.
func TestGroupIsFair(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		config := Config{ReceiveWindow: 1024}
		g := NewGroup()
		l := w.listen(&config)
		e, _ := w.endpoint("10.0.0.2:0", &config)
		const small = 20
		var clients []*Conn
		for range small + 1 {
			c := w.dial(e)
			require.NoError(t, g.Add(accepted(t, l)))
			clients = append(clients, c)
		}
		go clients[0].Write(make([]byte, 1<<20))
		time.Sleep(5 * time.Second) // the window is full
		for _, c := range clients[1:] {
			_, err := c.Write([]byte{1})
			require.NoError(t, err)
		}
		time.Sleep(time.Second)
		events := make([]Event, 3) // a run of the large one fills much of the memory
		others, large := 0, 0
		for others < small {
			n, err := g.Wait(done(), events)
			require.NoError(t, err)
			for _, e := range events[:n] {
				if len(e.Data) > 1 {
					require.LessOrEqual(t, len(e.Data), groupRun)
					large++
				} else {
					others++
				}
			}
			require.LessOrEqual(t, large, 2, "the large session keeps others waiting")
		}
		for {
			if n, _ := g.Wait(done(), events); n == 0 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// What is not taken fills the receive window, and stops the peer.
func TestGroupFlowControl(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		config := Config{ReceiveWindow: 128, WriteBuffer: 64 << 10}
		a, _, g := w.grouped(&config)
		data := content(1, 1<<20)
		written := make(chan error, 1)
		var n atomic.Int64
		go func() {
			for rest := data; len(rest) > 0; rest = rest[1024:] {
				if _, err := a.Write(rest[:1024]); err != nil {
					written <- err
					return
				}
				n.Add(1024)
			}
			written <- a.CloseWrite()
		}()
		time.Sleep(20 * time.Second)
		require.Less(t, n.Load(), int64(400<<10))
		var got []byte
		for _, e := range take(t, g) {
			got = append(got, e.data...)
		}
		time.Sleep(100 * time.Millisecond) // the peer is told of the room at once
		all := take(t, g)
		require.NotEmpty(t, all)
		for _, e := range all {
			got = append(got, e.data...)
		}
		events := make([]Event, 8)
		for {
			n, err := g.Wait(context.Background(), events)
			require.NoError(t, err)
			for _, e := range events[:n] {
				got = append(got, e.Data...)
			}
			if events[n-1].Kind == EventEOF {
				break
			}
		}
		require.NoError(t, <-written)
		require.True(t, bytes.Equal(data, got))
	})
}

// The listener of a group, and what becomes of its backlog.
func TestGroupListener(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		config := Config{Backlog: 4}
		l := w.listen(&config)
		e, _ := w.endpoint("10.0.0.2:0", &config)
		g, other := NewGroup(), NewGroup()
		errs := make(chan error)
		go func() {
			_, err := l.AcceptKCP(context.Background())
			errs <- err
		}()
		synctest.Wait()
		require.NoError(t, l.AcceptInto(g))
		require.ErrorIs(t, <-errs, ErrGrouped)
		_, err := l.Accept()
		require.ErrorIs(t, err, ErrGrouped)
		require.ErrorIs(t, l.AcceptInto(g), ErrGrouped)
		require.ErrorContains(t, l.AcceptInto(g), "kcp: already in a Group")
		require.ErrorIs(t, l.AcceptInto(other), ErrGrouped)

		first := w.dial(e)
		_, err = first.Write([]byte("hello"))
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.Zero(t, g.Len())
		all := take(t, g)
		require.Equal(t, []EventKind{EventAccepted, EventData}, kinds(all))
		require.Equal(t, 1, g.Len())

		require.NoError(t, l.AcceptInto(nil))
		w.dial(e)
		time.Sleep(time.Second)
		require.Empty(t, take(t, g))
		second := accepted(t, l)
		require.NoError(t, g.Add(second))

		require.NoError(t, l.AcceptInto(other)) // with a backlog
		w.dial(e)
		time.Sleep(time.Second)
		require.NoError(t, l.AcceptInto(nil))
		require.Empty(t, take(t, other))
		require.NoError(t, l.AcceptInto(g))
		takeOne(t, g, EventAccepted)

		third := w.dial(e)
		time.Sleep(time.Second)
		require.NoError(t, g.Close()) // the listener is alone again
		accepted(t, l)
		require.ErrorIs(t, l.AcceptInto(g), net.ErrClosed)

		require.NoError(t, l.AcceptInto(other))
		fourth := w.dial(e)
		for range config.Backlog + 3 { // more than may wait
			go e.Dial(w.t.Context(), l.Addr())
		}
		time.Sleep(time.Second)
		l.mu.Lock()
		require.Len(t, l.backlog, config.Backlog)
		l.mu.Unlock()
		require.NoError(t, l.Close())
		require.Empty(t, take(t, other))
		require.ErrorIs(t, l.AcceptInto(other), net.ErrClosed)
		_, err = fourth.Read(make([]byte, 1))
		require.ErrorIs(t, err, ErrReset)
		_, err = third.Write([]byte("still there"))
		require.NoError(t, err)
	})
}

// Send without room returns ErrWouldBlock and takes what fits; EventWritable
// follows once.
func TestGroupSendWouldBlock(t *testing.T) {
	for _, message := range []bool{false, true} {
		inWorld(t, 0, clean, func(t *testing.T, w *world) {
			a, b, g := w.grouped(&Config{MessageMode: message, WriteBuffer: 8 << 10})
			data := content(3, 40_000)
			out := []Outgoing{{Conn: b, Data: data}, {Conn: b, Data: []byte("more")}}
			want := data
			if message {
				require.Equal(t, 1, g.Send(out))
				require.NoError(t, out[0].Err)
				require.Equal(t, len(data), out[0].N)
			} else {
				require.Equal(t, 0, g.Send(out))
				require.Equal(t, ErrWouldBlock, out[0].Err)
				require.Positive(t, out[0].N)
				require.Less(t, out[0].N, len(data))
				want = data[:out[0].N]
			}
			require.Equal(t, ErrWouldBlock, out[1].Err)
			require.Zero(t, out[1].N)
			require.Empty(t, take(t, g))
			receive(t, a, want)
			time.Sleep(time.Second)
			takeOne(t, g, EventWritable)
			require.Equal(t, 1, g.Send(out[1:]))
			receive(t, a, []byte("more"))
			time.Sleep(time.Second)
			require.Empty(t, take(t, g))
		})
	}
}

// Send gives each session its own, in as few packets as possible, and errors of
// one do not affect others.
func TestGroupSend(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		config := Config{MessageMode: true}
		g := NewGroup()
		l := w.listen(&config)
		e, _ := w.endpoint("10.0.0.2:0", &config)
		var batch []Outgoing
		var clients []*Conn
		const sessions = 30
		for i := range sessions {
			clients = append(clients, w.dial(e))
			c := accepted(t, l)
			if i%2 == 0 {
				require.NoError(t, g.Add(c)) // the others are in no group
			}
			batch = append(batch, Outgoing{Conn: c, Data: []byte{byte(i), 1}}, Outgoing{Conn: c, Data: []byte{byte(i), 2}},
				Outgoing{Conn: c, Data: []byte{byte(i), 3}, Datagram: true})
		}
		w.settle()
		require.NoError(t, batch[3].Conn.Abort())
		big := Outgoing{Conn: batch[0].Conn, Data: make([]byte, 100_000), Datagram: true, N: 7}
		nowhere := Outgoing{Data: []byte("to no one"), N: 7}
		batch = append(batch, nowhere, big)
		before := l.ep.Stats().PacketsSent
		require.Equal(t, len(batch)-5, g.Send(batch))
		require.Equal(t, uint64(2*(sessions-1)), l.ep.Stats().PacketsSent-before, "two packets for each session: messages, and a datagram")
		for i, o := range batch {
			switch {
			case i == len(batch)-1:
				require.ErrorIs(t, o.Err, ErrDatagramTooLarge)
				require.Zero(t, o.N)
			case i == len(batch)-2:
				require.ErrorIs(t, o.Err, syscall.EINVAL)
				require.EqualError(t, o.Err, "write kcp: kcp: Outgoing has no Conn and no Stream")
				require.Zero(t, o.N)
			case i/3 == 1:
				require.ErrorIs(t, o.Err, net.ErrClosed)
			default:
				require.NoError(t, o.Err)
				require.Equal(t, 2, o.N)
			}
		}
		b := make([]byte, 10)
		for i, c := range clients {
			if i == 1 {
				continue
			}
			for k := range byte(2) {
				n, err := c.ReadMessage(b)
				require.NoError(t, err)
				require.Equal(t, []byte{byte(i), k + 1}, b[:n])
			}
			d, err := c.ReceiveDatagram(context.Background())
			require.NoError(t, err)
			require.Equal(t, []byte{byte(i), 3}, d)
		}
	})
}

// A Write that waits comes before what Send has.
func TestGroupSendBehindWrite(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, b, g := w.grouped(&Config{WriteBuffer: 8 << 10})
		data := content(3, 40_000)
		written := make(chan error)
		go func() {
			_, err := b.Write(data)
			written <- err
		}()
		synctest.Wait()
		out := []Outgoing{{Conn: b, Data: []byte("later")}}
		require.Zero(t, g.Send(out))
		require.Equal(t, ErrWouldBlock, out[0].Err)
		receive(t, a, data)
		require.NoError(t, <-written)
		time.Sleep(time.Second)
		takeOne(t, g, EventWritable)
		require.Equal(t, 1, g.Send(out))
		receive(t, a, []byte("later"))
	})
}

// Close of a session in a group does not wait, and what was written arrives.
func TestGroupCloseDoesNotWait(t *testing.T) {
	inWorld(t, 0, lossy, func(t *testing.T, w *world) {
		a, b, g := w.grouped(nil)
		data := content(9, 100_000)
		_, err := b.Write(data)
		require.NoError(t, err)
		before := time.Now()
		require.NoError(t, b.Close())
		require.Equal(t, before, time.Now())
		require.ErrorIs(t, takeOne(t, g, EventEnded).Err, net.ErrClosed)
		got, err := io.ReadAll(a)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, got))
	})
}

// A session that changes its peer's address stays in its group.
func TestGroupMigration(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, b, _, pc := w.movable(&Config{Cipher: groupCipher(t)})
		g := NewGroup()
		require.NoError(t, g.Add(b))
		old := b.RemoteAddr().String()
		require.NoError(t, pc.Rebind("10.0.0.9:7000"))
		_, err := a.Write([]byte("moved"))
		require.NoError(t, err)
		time.Sleep(5 * time.Second)
		require.Equal(t, "moved", string(takeOne(t, g, EventData).data))
		require.NotEqual(t, old, b.RemoteAddr().String())
	})
}

// Wait and Send allocate nothing once they have run.
func TestGroupAllocates(t *testing.T) {
	if raceEnabled {
		t.Skip("the detector makes sync.Pool forget")
	}
	for _, message := range []bool{false, true} {
		left, right := newWire("10.0.0.1:1"), newWire("10.0.0.2:2")
		a, z := joinedWith(t, left, right, &Config{MessageMode: message})
		g := NewGroup()
		require.NoError(t, g.Add(z))
		events := make([]Event, 8)
		out := []Outgoing{{Conn: a, Data: make([]byte, 64)}, {Conn: a, Data: make([]byte, 64)}}
		ctx, ended := context.Background(), done()
		var allocs uint64
		counted := func(f func()) { // what carries the packets allocates
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			f()
			runtime.ReadMemStats(&after)
			allocs += after.Mallocs - before.Mallocs
		}
		sent := uint64(0)
		for i := range 600 {
			if i == 100 {
				allocs, sent = 0, a.ep.Stats().PacketsSent
			}
			counted(func() {
				if g.Send(out) != 2 {
					panic(out[0].Err)
				}
			})
			deliver(a, z)
			counted(func() {
				n, err := g.Wait(ctx, events)
				if err != nil || n == 0 {
					panic(err)
				}
				if n, err = g.Wait(ended, events); n != 0 || err != context.Canceled {
					panic(err)
				}
			})
		}
		addresses := 2 * (a.ep.Stats().PacketsSent - sent)      // for a socket that is not of the system
		require.Less(t, allocs, addresses+400, "in 500 rounds") // the runtime allocates some, too
	}
}

// The reading goroutine calls a handler, without locks; what needs no packet
// comes by another goroutine, never two at once.
func TestGroupHandle(t *testing.T) {
	for seed := range fewer(4) {
		inWorld(t, seed, lossy, func(t *testing.T, w *world) {
			config := Config{WriteBuffer: 16 << 10, PeerTimeout: 10 * time.Second, KeepAlive: 5 * time.Second}
			g := NewGroup()
			l := w.listen(&config)
			require.NoError(t, l.AcceptInto(g))
			s := newEchoes(t, g)
			var busy atomic.Bool
			var byReader, byOthers int
			require.NoError(t, g.Handle(func(events []Event) {
				require.True(t, busy.CompareAndSwap(false, true), "two calls at once")
				defer busy.Store(false)
				stack := make([]byte, 8192)
				if stack = stack[:runtime.Stack(stack, false)]; bytes.Contains(stack, []byte("readLoop")) {
					byReader++
				} else {
					byOthers++
				}
				for _, e := range events {
					_ = e.Conn.Stats() // takes Conn.mu
					_ = l.ep.Stats()   // takes Endpoint.mu
					s.handle(e)
				}
			}))
			_, err := g.Wait(done(), make([]Event, 1))
			require.ErrorIs(t, err, ErrGroupInUse)
			require.ErrorIs(t, g.Serve(done(), func(Event) {}), ErrGroupInUse)
			require.ErrorIs(t, g.Handle(func([]Event) {}), ErrGroupInUse)
			e, _ := w.endpoint("10.0.0.2:0", &config)
			var clients sync.WaitGroup
			for i := range uint64(5) {
				clients.Go(func() {
					c := w.dial(e)
					data := content(i, 50_000)
					go func() {
						_, err := c.Write(data)
						assert.NoError(t, err)
						assert.NoError(t, c.CloseWrite())
					}()
					got, err := io.ReadAll(c)
					assert.NoError(t, err)
					assert.True(t, bytes.Equal(data, got))
					assert.NoError(t, c.Close())
				})
			}
			clients.Wait()
			lost := w.dial(e)
			_, err = lost.Write([]byte{1})
			require.NoError(t, err)
			receive(t, lost, []byte{1})
			w.net.Cut("10.0.0.1", "10.0.0.2")
			time.Sleep(time.Minute)
			synctest.Wait()
			require.Len(t, s.ends, 6)
			require.Zero(t, g.Len())
			require.Greater(t, byReader, 10*byOthers)
			require.Positive(t, byOthers)
			ends := 0
			for _, err := range s.ends {
				if lost := (*PeerLostError)(nil); errors.As(err, &lost) {
					ends++
				}
			}
			require.Equal(t, 1, ends)
		})
	}
}

// What a handler may call, and that nothing is read while it blocks.
func TestGroupHandleCalls(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, b, g := w.grouped(nil)
		other := NewGroup()
		release := make(chan struct{})
		var seen []string
		require.NoError(t, g.Handle(func(events []Event) {
			for _, e := range events {
				seen = append(seen, string(e.Data))
				switch string(e.Data) {
				case "block":
					<-release
				case "send":
					assert.Equal(t, 1, g.Send([]Outgoing{{Conn: b, Data: []byte("sent")}}))
					assert.NoError(t, b.SendDatagram([]byte("datagram")))
				case "remove":
					assert.NoError(t, g.Remove(b))
					assert.NoError(t, other.Add(b))
				case "back":
					assert.Fail(t, "an event of a session that was removed")
				case "group":
					assert.NoError(t, g.Close())
				}
			}
		}))
		say := func(what string) {
			_, err := a.Write([]byte(what))
			require.NoError(t, err)
			time.Sleep(time.Second)
			synctest.Wait()
		}
		say("one")
		say("block")
		received := b.ep.Stats().PacketsReceived
		say("two")
		require.Equal(t, received, b.ep.Stats().PacketsReceived)
		require.Equal(t, []string{"one", "block"}, seen)
		close(release)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		require.Equal(t, []string{"one", "block", "two"}, seen)
		say("send")
		receive(t, a, []byte("sent"))
		d, err := a.ReceiveDatagram(context.Background())
		require.NoError(t, err)
		require.Equal(t, "datagram", string(d))
		say("remove")
		say("back")
		require.Equal(t, "back", string(takeOne(t, other, EventData).data))
		require.NoError(t, other.Remove(b))
		require.NoError(t, g.Add(b))
		say("group")
		say("after")
		receive(t, b, []byte("after"))
		require.Equal(t, []string{"one", "block", "two", "send", "remove", "group"}, seen)
		require.ErrorIs(t, g.Handle(func([]Event) {}), net.ErrClosed)
	})
}

// The program ends if a handler panics that the reader of the socket calls.
func TestGroupHandlePanics(t *testing.T) {
	sequential(t)
	const variable = "KCP_TEST_PANIC"
	if os.Getenv(variable) == "" {
		exe, err := os.Executable()
		require.NoError(t, err)
		cmd := exec.Command(exe, "-test.run=^TestGroupHandlePanics$", "-test.timeout=1m")
		cmd.Env = append(os.Environ(), variable+"=1")
		out, err := cmd.CombinedOutput()
		require.ErrorAs(t, err, new(*exec.ExitError))
		require.Contains(t, string(out), "panic: of the handler")
		return
	}
	left, right := newWire("10.0.0.1:1"), newWire("10.0.0.2:2")
	a, z := joinedWith(t, left, right, &Config{})
	g := NewGroup()
	require.NoError(t, g.Add(z))
	require.NoError(t, g.Handle(func([]Event) { panic("of the handler") }))
	for { // until the handler is called
		_, err := a.Write([]byte{1})
		require.NoError(t, err)
		z.ep.feeding.begin()
		deliver(a, z)
		z.ep.feeding.end()
	}
}

// All of a batch of packets is fed before a call that waits is woken, or a
// handler called.
func TestGroupTakesBatches(t *testing.T) {
	sequential(t)
	left, right := newWire("10.0.0.1:1"), newWire("10.0.0.2:2")
	a, z := joinedWith(t, left, right, &Config{})
	g := NewGroup()
	require.NoError(t, g.Add(z))
	calls := make(chan int, 10)
	require.NoError(t, g.Handle(func(events []Event) { calls <- len(events) }))
	_, err := a.Write([]byte{1})
	require.NoError(t, err)
	deliver(a, z) // without a reader: a goroutine takes it
	require.Equal(t, 1, <-calls)
	z.ep.feeding.begin()
	for range 3 {
		_, err := a.Write([]byte{1})
		require.NoError(t, err)
		require.NoError(t, a.SendDatagram([]byte{2}))
		deliver(a, z)
	}
	require.Empty(t, calls)
	z.ep.feeding.end()
	require.Equal(t, 4, <-calls) // three datagrams, and a run of all bytes
	require.Empty(t, calls)
}

// Moments that last from one step of a session to the next: the peer's CLOSE was
// taken, but the session not ended; it has ended, but is in the table yet; a Write
// is not done, but there is room; a Write reads the socket.
func TestGroupBetweenSteps(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		_, b, g := w.grouped(nil)
		now := func(change func()) []EventKind {
			b.mu.Lock()
			change()
			b.io.canRead.Broadcast()
			b.mu.Unlock()
			return kinds(take(t, g))
		}
		require.Empty(t, now(func() {
			require.False(t, b.mayDeferReply(&b.io.canWrite), "who waits for the group would wait longer")
			b.hs.peerFin, b.hs.peerClosed, b.hs.peerFinal = true, true, b.kcp.recvNext()
		}))
		require.Equal(t, []EventKind{EventEOF}, now(func() { b.hs.peerClosed = false }))
		require.Empty(t, now(func() { b.closing.state, b.closing.err = stateEnded, ErrReset }))
		require.Empty(t, now(func() { b.closing.state, b.closing.err = stateOpen, nil }))
		b.writing.Lock()
		out := []Outgoing{{Conn: b, Data: []byte("not between")}}
		require.Zero(t, g.Send(out))
		require.Equal(t, ErrWouldBlock, out[0].Err)
		b.writing.Unlock()
	})
}

// More than the memory of one call holds comes with the next calls, and a
// message larger than all of it comes whole.
func TestGroupMemory(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, _, g := w.grouped(&Config{MessageMode: true, ReceiveWindow: 1024})
		sizes := []int{60_000, 60_000, 60_000, 1, groupMemorySize + 1000, 1}
		for i, size := range sizes {
			require.NoError(t, a.WriteMessage(content(uint64(i), size)))
		}
		time.Sleep(10 * time.Second)
		all := take(t, g)
		require.Len(t, all, len(sizes))
		for i, e := range all {
			require.True(t, bytes.Equal(content(uint64(i), sizes[i]), e.data), "message %d", i)
		}
	})
}

// What a session allocates fits its size class, of which the allocator takes 8
// bytes for itself. One field more would cost 128 bytes a session.
func TestConnSize(t *testing.T) {
	const header = 8
	require.LessOrEqual(t, header+unsafe.Sizeof(Conn{}), uintptr(896))
	require.LessOrEqual(t, header+unsafe.Sizeof(KCP{}), uintptr(1280))
}
