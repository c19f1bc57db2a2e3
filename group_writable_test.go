package kcp

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A write that does not wait, and finds another call in the middle of its write, is
// told when that is done, though there was room all the time.
func TestGroupWritableAfterAWrite(t *testing.T) {
	type writer interface {
		Write(b []byte) (int, error)
		TryWrite(b []byte) (int, error)
		TryWriteMessage(b []byte) error
		SendMessage(b []byte, o *MessageOptions) error
		WriteMessage(b []byte) error
	}
	for name, call := range map[string]func(w writer, g *Group) error{
		"Write":           func(w writer, _ *Group) error { _, err := w.Write([]byte{1}); return err },
		"TryWrite":        func(w writer, _ *Group) error { _, err := w.TryWrite([]byte{1}); return err },
		"WriteMessage":    func(w writer, _ *Group) error { return w.WriteMessage([]byte{1}) },
		"SendMessage":     func(w writer, _ *Group) error { return w.SendMessage([]byte{1}, new(MessageOptions)) },
		"TryWriteMessage": func(w writer, _ *Group) error { return w.TryWriteMessage([]byte{1}) },
	} {
		for _, ofStream := range []bool{true, false} {
			inWorld(t, 2, clean, func(t *testing.T, w *world) {
				_, b, g := w.withStreams(&Config{MessageMode: true})
				s, err := b.TryOpenStream(nil)
				require.NoError(t, err)
				time.Sleep(time.Second)
				var of writer = b
				if ofStream {
					of = s
				}
				var refused, after error
				w.net.SetFilter(func(from, _ netip.AddrPort, _ []byte) bool {
					if from.String() == serverAddr && refused == nil { // the packet of the call
						_, refused = of.TryWrite([]byte{2})
						b.mu.Lock()
						(*streamCalls)(s).Writable() // as credit that has come
						b.io.canWrite.Broadcast()
						b.mu.Unlock()
						require.Empty(t, take(t, g), "the call is not done yet")
					}
					return true
				})
				require.NoError(t, call(of, g))
				require.Same(t, ErrWouldBlock, refused)
				w.net.SetFilter(nil)
				e := takeOne(t, g, EventWritable)
				require.Equal(t, ofStream, e.Stream == s, name)
				_, after = of.TryWrite([]byte{2})
				require.NoError(t, after)
			})
		}
	}
}
