package kcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/wire"
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

// grouped returns the two ends of a session, of which b is in a group.
func (w *world) grouped(config *Config) (a, b *Conn, g *Group) {
	w.t.Helper()
	a, b, _ = w.pair(config, config)
	g = NewGroup()
	require.NoError(w.t, g.Add(b))
	return a, b, g
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
		{"peer aborts", func(_ *world, a, _ *Conn) { time.Sleep(time.Second); _ = a.Abort(0, "") }, []EventKind{EventData, EventEnded}, ErrReset},
		{"peer half-closes", func(_ *world, a, _ *Conn) { _ = a.CloseWrite() }, []EventKind{EventData, EventEOF}, nil},
		{"peer half-closes and closes", func(_ *world, a, _ *Conn) { _ = a.CloseWrite(); time.Sleep(time.Second); _ = a.Close() }, []EventKind{EventData, EventEnded}, io.EOF},
		{"close", func(_ *world, _, b *Conn) { _ = b.Close() }, []EventKind{EventEnded}, net.ErrClosed},
		{"abort", func(_ *world, _, b *Conn) { _ = b.Abort(0, "") }, []EventKind{EventEnded}, net.ErrClosed},
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
				writeAll(t, a, []byte("last words"))
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
					writeAll(t, b, []byte("answer"))
					receive(t, a, []byte("answer"))
					require.NoError(t, a.Abort(0, ""))
					time.Sleep(time.Second)
					require.ErrorIs(t, takeOne(t, g, EventEnded).Err, ErrReset)
				} else if lost := (&PeerLostError{}); errors.As(end.err, &lost) {
					require.ErrorAs(t, last.Err, &lost)
				} else {
					require.ErrorIs(t, last.Err, end.err)
				}
				require.Zero(t, g.Len())
				require.ErrorIs(t, g.Remove(b), errNotGrouped)
				time.Sleep(time.Minute)
				require.Empty(t, take(t, g))
			})
		})
	}
}

// What happens to sessions that are read in another way when they come into a
// group, and when they go.
func TestGroupAddRemove(t *testing.T) {
	for seed := range uint64(2) {
		inWorld(t, seed, clean, func(t *testing.T, w *world) {
			a, b, _ := w.pair(&Config{}, &Config{})
			g, other := NewGroup(), NewGroup()
			require.ErrorIs(t, g.Remove(b), errNotGrouped)
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
			require.ErrorIs(t, <-errs, errGrouped)
			require.ErrorIs(t, <-errs, errGrouped)
			_, err := b.Read(make([]byte, 10))
			require.ErrorIs(t, err, errGrouped)
			_, err = b.ReadMessage(make([]byte, 10))
			require.ErrorIs(t, err, ErrInUse)
			_, err = b.ReceiveDatagram(context.Background())
			require.ErrorIs(t, err, ErrInUse)
			for _, group := range []*Group{g, other} {
				err := group.Add(b)
				require.ErrorIs(t, err, ErrInUse)
				require.EqualError(t, err, "add kcp 10.0.0.1:4000->"+b.RemoteAddr().String()+": kcp: already in a Group")
			}
			require.ErrorIs(t, other.Remove(b), errNotGrouped)
			require.Equal(t, 1, g.Len())

			writeAll(t, a, []byte("one"))
			time.Sleep(time.Second)
			require.NoError(t, g.Remove(b))
			require.Zero(t, g.Len())
			require.Empty(t, take(t, g))
			receive(t, b, []byte("one"))

			writeAll(t, a, []byte("two"))
			time.Sleep(time.Second)
			require.NoError(t, other.Add(b)) // what is there comes at once
			require.Equal(t, "two", string(takeOne(t, other, EventData).data))
			require.NoError(t, b.SetReadDeadline(time.Now().Add(-time.Second)))
			writeAll(t, a, []byte("three"))
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
		require.ErrorIs(t, err, errGroupInUse)
		writeAll(t, a, []byte("data"))
		require.NoError(t, <-results)
		require.Equal(t, "data", string(events[0].Data))
		go wait()
		synctest.Wait()
		cancel()
		require.Equal(t, context.Canceled, <-results)

		writeAll(t, a, []byte("more"))
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
		require.ErrorIs(t, g.Remove(b), errNotGrouped)
		require.ErrorIs(t, g.Add(b), net.ErrClosed)
		bothWays(t, a, b, []byte("on"), []byte("goes")) // without the group
	})
}

// The listener of a group, and what becomes of its backlog.
func TestGroupListener(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		config := Config{Limits: Limits{Backlog: 4}}
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
		require.ErrorIs(t, <-errs, errGrouped)
		_, err := l.Accept()
		require.ErrorIs(t, err, ErrInUse)
		require.ErrorIs(t, l.AcceptInto(g), ErrInUse)
		require.ErrorContains(t, l.AcceptInto(g), "kcp: already in a Group")
		require.ErrorIs(t, l.AcceptInto(other), ErrInUse)

		first := w.dial(e)
		writeAll(t, first, []byte("hello"))
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
		w.dial(e)
		time.Sleep(time.Second)
		require.NoError(t, l.AcceptInto(nil))
		require.Empty(t, take(t, other))
		require.NoError(t, l.AcceptInto(g))
		require.Equal(t, []EventKind{EventAccepted, EventAccepted}, kinds(take(t, g)))

		third := w.dial(e)
		time.Sleep(time.Second)
		require.NoError(t, g.Close()) // the listener is alone again
		accepted(t, l)
		require.ErrorIs(t, l.AcceptInto(g), net.ErrClosed)

		require.NoError(t, l.AcceptInto(other))
		fourth := w.dial(e)
		for range config.Limits.Backlog + 3 { // more than may wait
			go e.Dial(w.t.Context(), l.Addr(), nil)
		}
		time.Sleep(time.Second)
		l.mu.Lock()
		require.Len(t, l.backlog, config.Limits.Backlog)
		l.mu.Unlock()
		require.NoError(t, l.Close())
		require.Empty(t, take(t, other))
		require.ErrorIs(t, l.AcceptInto(other), net.ErrClosed)
		_, err = fourth.Read(make([]byte, 1))
		require.ErrorIs(t, err, ErrReset)
		writeAll(t, third, []byte("still there"))
	})
}

// Close of a session in a group does not wait, and what was written arrives.
func TestGroupCloseDoesNotWait(t *testing.T) {
	inWorld(t, 0, lossy, func(t *testing.T, w *world) {
		a, b, g := w.grouped(nil)
		data := content(9, 100_000)
		writeAll(t, b, data)
		before := time.Now()
		require.NoError(t, b.Close())
		require.Equal(t, before, time.Now())
		require.ErrorIs(t, takeOne(t, g, EventEnded).Err, net.ErrClosed)
		got, err := io.ReadAll(a)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, got))
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
		require.NoError(t, batch[3].Conn.Abort(0, ""))
		big := Outgoing{Conn: batch[0].Conn, Data: make([]byte, 100_000), Datagram: true, N: 7}
		nowhere := Outgoing{Data: []byte("to no one"), N: 7}
		batch = append(batch, nowhere, big)
		before := l.ep.Stats().PacketsSent
		require.Equal(t, len(batch)-5, g.Send(batch))
		require.Equal(t, uint64(2*(sessions-1)), l.ep.Stats().PacketsSent-before, "two packets for each session: messages, and a datagram")
		for i, o := range batch {
			switch {
			case i == len(batch)-1:
				require.ErrorIs(t, o.Err, ErrMessageTooLarge)
				require.Zero(t, o.N)
			case i == len(batch)-2:
				require.ErrorIs(t, o.Err, syscall.EINVAL)
				require.EqualError(t, o.Err, "write: kcp: Outgoing has no Conn and no Stream")
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

// A write that does not wait, and finds another call in the middle of its write, is
// told when that is done, though there was room all the time.
func TestGroupWritableAfterAWrite(t *testing.T) {
	inWorld(t, 2, clean, func(t *testing.T, w *world) {
		a, b, g := w.grouped(nil)
		var refused error
		w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool {
			if from.String() == serverAddr && refused == nil { // the first packet of the call
				_, refused = b.TryWrite([]byte{2})
				b.mu.Lock()
				b.io.canWrite.Broadcast() // as acknowledgements that have come
				b.mu.Unlock()
				require.Empty(t, take(t, g), "the call is not done yet")
			}
			return true
		})
		data := content(1, 2*session.WriteBatch*(b.session.Inside().Machine().PacketSize()-wire.HeaderSize))
		writeAll(t, b, data)
		require.Same(t, ErrWouldBlock, refused)
		w.net.SetFilter(nil)
		takeOne(t, g, EventWritable)
		_, err := b.TryWrite([]byte{2})
		require.NoError(t, err)
		receive(t, a, append(data, 2))
	})
}

// A member for whose event the call has no memory left is the first of the next call.
func TestGroupOrderWithoutMemory(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		config := Config{ReceiveWindow: 1024}
		g := NewGroup()
		l := w.listen(&config)
		e, _ := w.endpoint("10.0.0.2:0", &config)
		for i := range 4 {
			c := w.dial(e)
			require.NoError(t, g.Add(accepted(t, l)))
			go c.Write(bytes.Repeat([]byte{byte(i)}, 200<<10))
			time.Sleep(5 * time.Second)
		}
		var events [8]Event
		var order []byte
		for range 2 {
			n, err := g.Wait(done(), events[:])
			require.NoError(t, err)
			for _, e := range events[:n] {
				order = append(order, e.Data[0])
			}
		}
		require.Equal(t, []byte{0, 1, 2, 3}, order)
	})
}

// More than the memory of one call holds comes with the next calls, and a
// message larger than all of it comes whole.
func TestGroupMemory(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		a, _, g := w.grouped(&Config{MessageMode: true, ReceiveWindow: 1024})
		sizes := []int{60_000, 60_000, 60_000, 1, groupMemorySize + 1000, 1}
		for i, size := range sizes {
			require.NoError(t, a.WriteMessage(content(uint64(i), size), nil))
		}
		time.Sleep(10 * time.Second)
		all := take(t, g)
		require.Len(t, all, len(sizes))
		for i, e := range all {
			require.True(t, bytes.Equal(content(uint64(i), sizes[i]), e.data), "message %d", i)
		}
	})
}

// Packets of several sessions leave together, and what is written to a session
// meanwhile leaves behind them. A session that ends meanwhile is retired.
func TestSendBatch(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]*Config{
		"plain": {},
		"FEC":   {FEC: FEC{Data: 3, Parity: 1}},
		"AEAD":  {Cipher: testAEAD(t)},
		"TLS":   secured(Config{}),
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 3, clean, func(t *testing.T, w *world) {
				const some, sessions = 20, sendBatchSize + 6
				l := w.listen(config)
				e, _ := w.endpoint("10.0.0.2:0", config)
				var clients, servers []*Conn
				for range sessions {
					clients = append(clients, w.dial(e))
					servers = append(servers, accepted(t, l))
				}
				w.settle()
				var b sendBatch
				sent := func() int { return int(l.ep.Stats().PacketsSent) }
				before := sent()
				queue := func(c *Conn, text string) {
					o := Outgoing{Conn: c, Data: []byte(text)}
					require.True(t, c.tryQueue(&o))
					require.NoError(t, o.Err)
					c.flushBatched(&b)
				}
				for i, c := range servers[:some] {
					queue(c, fmt.Sprint("message ", i))
				}
				require.Equal(t, before, sent(), "they leave together")
				require.Len(t, b.writes, some)
				_, err := servers[0].Write([]byte(" and more"))
				require.NoError(t, err)
				require.NoError(t, servers[1].Abort(0, ""))
				require.Equal(t, before, sent(), "what is written meanwhile leaves behind them")
				for i, c := range servers[some:] {
					queue(c, fmt.Sprint("message ", some+i))
				}
				require.GreaterOrEqual(t, sent()-before, sendBatchSize, "a full batch has left")
				require.Less(t, len(b.batch), sendBatchSize)
				b.send()
				require.Empty(t, b.batch)
				for i, c := range clients {
					want := fmt.Sprint("message ", i)
					if i == 0 {
						want += " and more"
					}
					receive(t, c, []byte(want))
				}
				<-servers[1].Done()
				require.Equal(t, sessions-1, l.ep.Stats().Sessions)
				_, err = clients[1].Read(make([]byte, 1))
				require.ErrorIs(t, err, ErrReset)
				b.send() // nothing
			})
		})
	}
}

// A session that ends while its packets are in a batch tells its peer before its socket
// is closed.
func TestEndInSendBatch(t *testing.T) {
	t.Parallel()
	l, err := Listen("udp4", "127.0.0.1:0", nil)
	require.NoError(t, err)
	defer l.Endpoint().Close()
	d, err := Dial("udp4", l.Addr().String(), nil)
	require.NoError(t, err)
	writeAll(t, d, []byte("a"))
	c := accepted(t, l)
	require.NoError(t, d.Flush(t.Context()))
	var b sendBatch
	o := Outgoing{Conn: d, Data: []byte("b")}
	require.True(t, d.tryQueue(&o))
	d.flushBatched(&b)
	require.Len(t, b.writes, 1)
	require.NoError(t, d.Abort(0, ""))
	b.send()
	<-d.Done()
	require.Zero(t, d.Endpoint().Stats().WriteErrors)
	_, err = io.ReadAll(c)
	require.ErrorIs(t, err, ErrReset)
}
