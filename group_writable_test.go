package kcp

import (
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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

// EventWritable follows writes that were refused, not those that have waited for room.
func TestWaitingWritesCauseNoEvent(t *testing.T) {
	for _, ofStream := range []bool{false, true} {
		inWorld(t, 2, clean, func(t *testing.T, w *world) {
			a, b, g := w.withStreams(small(false))
			var from io.Reader = a
			var to io.Writer = b
			data := content(1, 1<<20)
			if ofStream {
				s, err := b.OpenStream(t.Context(), nil)
				require.NoError(t, err)
				_, err = s.Write(data[:1])
				require.NoError(t, err)
				other, err := a.AcceptStream(t.Context())
				require.NoError(t, err)
				_, err = io.ReadFull(other, make([]byte, 1))
				require.NoError(t, err)
				from, to = other, s
			}
			begun := time.Now()
			wrote := make(chan error, 1)
			go func() {
				_, err := to.Write(data)
				wrote <- err
			}()
			got := make([]byte, len(data))
			_, err := io.ReadFull(from, got)
			require.NoError(t, err)
			require.Equal(t, data, got)
			require.NoError(t, <-wrote)
			require.Positive(t, time.Since(begun), "it has waited")
			require.Empty(t, take(t, g))
		})
	}
}

// A call that has queued all that it was given keeps no other from writing while its
// packets leave.
func TestTryWriteDuringTheLastPackets(t *testing.T) {
	type writer interface {
		Write(b []byte) (int, error)
		TryWrite(b []byte) (int, error)
		TryWriteMessage(b []byte) error
		SendMessage(b []byte, o *MessageOptions) error
		WriteMessage(b []byte) error
	}
	for name, call := range map[string]func(w writer) error{
		"Write":           func(w writer) error { _, err := w.Write([]byte{1}); return err },
		"TryWrite":        func(w writer) error { _, err := w.TryWrite([]byte{1}); return err },
		"WriteMessage":    func(w writer) error { return w.WriteMessage([]byte{1}) },
		"SendMessage":     func(w writer) error { return w.SendMessage([]byte{1}, new(MessageOptions)) },
		"TryWriteMessage": func(w writer) error { return w.TryWriteMessage([]byte{1}) },
	} {
		for _, ofStream := range []bool{true, false} {
			inWorld(t, 2, clean, func(t *testing.T, w *world) {
				a, b, _ := w.withStreams(&Config{MessageMode: true})
				s, err := b.TryOpenStream(nil)
				require.NoError(t, err)
				time.Sleep(time.Second)
				var of writer = b
				if ofStream {
					of = s
				}
				done := false
				w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool {
					if from.String() == serverAddr && !done { // the packet of the call
						done = true
						_, err := of.TryWrite([]byte{2})
						require.NoError(t, err, name)
					}
					return true
				})
				require.NoError(t, call(of))
				require.True(t, done)
				var to messageReader = a
				if ofStream {
					to, err = a.AcceptStream(t.Context())
					require.NoError(t, err)
				}
				for i := range byte(2) {
					p := make([]byte, 10)
					n, err := to.ReadMessage(p)
					require.NoError(t, err)
					require.Equal(t, []byte{1 + i}, p[:n])
				}
			})
		}
	}
}

type messageReader interface{ ReadMessage(b []byte) (int, error) }
