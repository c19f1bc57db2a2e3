package kcp

import (
	"bytes"
	"context"
	"errors"
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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Handle refuses nil, which would end the program at the first event.
func TestGroupHandleNil(t *testing.T) {
	g := NewGroup()
	require.ErrorIs(t, g.Handle(nil), syscall.EINVAL)
	require.NoError(t, g.Handle(func([]Event) {}))
	require.NoError(t, g.Close())
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
		cmd := exec.Command(exe, "-test.run=^TestGroupHandlePanics$", "-test.timeout=60m")
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
		z.ep.feeding.Begin()
		deliver(a, z)
		z.ep.feeding.End(attendGroup)
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
	z.ep.feeding.Begin()
	for range 3 {
		_, err := a.Write([]byte{1})
		require.NoError(t, err)
		require.NoError(t, a.SendDatagram([]byte{2}))
		deliver(a, z)
	}
	require.Empty(t, calls)
	z.ep.feeding.End(attendGroup)
	require.Equal(t, 4, <-calls) // three datagrams, and a run of all bytes
	require.Empty(t, calls)
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
