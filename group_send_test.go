package kcp

import (
	"context"
	"net"
	"runtime"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

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
		least := int64(1 << 40)     // of 100 rounds, as the runtime allocates some now and then
		counted := func(f func()) { // what carries the packets allocates
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			f()
			runtime.ReadMemStats(&after)
			allocs += after.Mallocs - before.Mallocs
		}
		sent := uint64(0)
		for i := range 600 {
			if i%100 == 0 {
				if i > 100 { // it is warm
					addresses := 2 * (a.ep.Stats().PacketsSent - sent) // for a socket that is not of the system
					least = min(least, int64(allocs)-int64(addresses))
				}
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
		require.Less(t, least, int64(80))
	}
}
