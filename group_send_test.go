package kcp

import (
	"context"
	"net"
	"net/netip"
	"syscall"
	"testing"
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
		data := content(1, 2*writeBatch*b.kcp.cfg.mss)
		_, err := b.Write(data)
		require.NoError(t, err)
		require.Same(t, ErrWouldBlock, refused)
		w.net.SetFilter(nil)
		takeOne(t, g, EventWritable)
		_, err = b.TryWrite([]byte{2})
		require.NoError(t, err)
		receive(t, a, append(data, 2))
	})
}
