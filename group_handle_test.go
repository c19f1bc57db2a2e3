package kcp

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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

// Moments that last from one step of a session to the next: the peer's CLOSE was
// taken, but the session not ended; it has ended, and its last packets are being
// written; a Write is not done, but there is room; a Write reads the socket.
func TestGroupBetweenSteps(t *testing.T) {
	inWorld(t, 0, clean, func(t *testing.T, w *world) {
		_, b, g := w.grouped(nil)
		time.Sleep(time.Second)
		synctest.Wait() // b takes no packet between the steps below
		now := func(change func()) []EventKind {
			b.mu.Lock()
			change()
			b.io.canRead.Broadcast()
			b.mu.Unlock()
			return kinds(take(t, g))
		}
		require.Empty(t, now(func() {
			require.False(t, b.mayDeferReply(&b.io.canWrite), "who waits for the group would wait longer")
			require.True(t, b.takeFin(signal{sigClose, uint32(b.kcp.position().received), 0}))
		}))
		require.Equal(t, []EventKind{EventEOF}, now(func() {
			b.closing = closeState{}
			require.True(t, b.takeFin(signal{sigFin, uint32(b.kcp.position().received), 0}))
		}))
		open := b.closing
		require.Empty(t, now(func() {
			b.closing.End()
			b.closing.err, b.outgoing.sending = ErrReset, true
		}))
		require.Empty(t, now(func() { b.closing, b.outgoing.sending = open, false }))
		b.writing.Lock()
		out := []Outgoing{{Conn: b, Data: []byte("not between")}}
		require.Zero(t, g.Send(out))
		require.Equal(t, ErrWouldBlock, out[0].Err)
		b.writing.Unlock()
	})
}
