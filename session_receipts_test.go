package kcp

import (
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/stretchr/testify/require"
)

// receiptCase is a way in which messages come to their receipts.
type receiptCase struct {
	name     string
	own      bool // messages of the session itself
	cut      bool // the peer gets none
	mute     bool // the peer gives no credit
	tires    bool // the cipher may fail
	buffer   int  // Config.StreamWriteBuffer
	lifetime time.Duration
	size     int
	end      func(w *world, a, b *Conn, s, r *Stream)
	want     error
}

var receiptCases = []receiptCase{
	{name: "acknowledged", want: nil},
	{name: "lifetime over, then written", cut: true, lifetime: time.Second, want: ErrMessageAbandoned},
	{name: "lifetime over in a full buffer", cut: true, size: 60000, buffer: 4096, lifetime: time.Second, want: ErrMessageAbandoned},
	{name: "reset", cut: true, want: &StreamError{Code: 7},
		end: func(_ *world, _, _ *Conn, s, _ *Stream) { _ = s.Reset(7) }},
	{name: "reset by the peer", mute: true, want: &StreamError{Code: 7, Remote: true},
		end: func(_ *world, _, _ *Conn, _, r *Stream) { _ = r.Reset(7) }},
	{name: "closed by the peer", mute: true, want: &StreamError{Code: 0, Remote: true},
		end: func(_ *world, _, _ *Conn, _, r *Stream) { _ = r.Close() }},
	{name: "abort", cut: true, want: net.ErrClosed,
		end: func(_ *world, a, _ *Conn, _, _ *Stream) { _ = a.Abort() }},
	{name: "abort of the peer", mute: true, want: ErrReset,
		end: func(_ *world, _, b *Conn, _, _ *Stream) { _ = b.Abort() }},
	{name: "close", mute: true, want: ErrNotDelivered,
		end: func(_ *world, a, _ *Conn, _, _ *Stream) { _ = a.Close() }},
	{name: "close of the peer", mute: true, want: ErrPeerClosed,
		end: func(_ *world, _, b *Conn, _, _ *Stream) { _ = b.Close() }},
	{name: "write error", cut: true, tires: true, want: crypt.ErrKeyExhausted,
		end: func(_ *world, a, _ *Conn, s, _ *Stream) {
			a.ep.config.Cipher.(*tiring).tired.Store(true)
			_, _ = s.Write([]byte{1})
		}},
	{name: "the session's, acknowledged", own: true, want: nil},
	{name: "the session's, lifetime over", own: true, cut: true, lifetime: time.Second, want: ErrMessageAbandoned},
	{name: "the session's, abort", own: true, cut: true, want: net.ErrClosed,
		end: func(_ *world, a, _ *Conn, _, _ *Stream) { _ = a.Abort() }},
	{name: "the session's, close of the peer", own: true, cut: true, want: ErrPeerClosed,
		end: func(w *world, _, b *Conn, _, _ *Stream) {
			w.net.Heal("10.0.0.1", "10.0.0.2")
			_ = b.Close()
		}},
}

// tiring is a cipher whose key is used up when the test says so.
type tiring struct {
	crypt.Cipher
	tired atomic.Bool
}

func (c *tiring) Seal(p []byte) error {
	if c.tired.Load() {
		return crypt.ErrKeyExhausted
	}
	return c.Cipher.Seal(p)
}

// free reports whether nobody keeps mu for good.
func free(mu *sync.Mutex) bool {
	for range 1000 {
		if mu.TryLock() {
			mu.Unlock()
			return true
		}
		runtime.Gosched()
	}
	return false
}

// However a message comes to its receipt: the call of Done runs without any lock
// of the session or the stream, so that it can send again, and it may wait, which
// holds up no more than other receipts.
func TestReceiptsRunWithoutLocks(t *testing.T) {
	for _, tc := range receiptCases {
		t.Run(tc.name, func(t *testing.T) { inWorld(t, 31, clean, func(w *world) { tc.run(w) }) })
	}
}

func (tc *receiptCase) run(w *world) {
	t := w.t
	config := &Config{MessageMode: tc.own, Linger: 3 * time.Second, MaxLinger: 3 * time.Second, StreamWriteBuffer: tc.buffer}
	server := *config
	if tc.tires {
		server.Cipher = testCiphers(t, 1)["aes-gcm"]
		config.Cipher = &tiring{Cipher: server.Cipher}
	}
	a, b, _ := w.pair(config, &server)
	s, r := streamPair(t, a, b, nil)
	time.Sleep(time.Second)
	if tc.cut {
		w.net.Cut("10.0.0.1", "10.0.0.2")
	}
	if tc.mute {
		a.mu.Lock()
		s.out.limit = s.out.used
		a.mu.Unlock()
	}
	results := make(chan error, 100)
	options := &MessageOptions{Lifetime: tc.lifetime}
	write := s.SendMessage
	if tc.own {
		write = a.SendMessage
	}
	held := make(chan struct{})
	options.Done = func(err error) {
		if !free(&a.mu) || !free(&a.writing) || !free(&s.writing) {
			t.Error("Done runs with a lock held")
		} else if tc.buffer == 0 {
			_ = write([]byte("again"), nil) // whatever comes of it
		}
		results <- err
		<-held
	}
	for range 3 {
		require.NoError(t, write(content(1, max(tc.size, 10)), options))
		if tc.lifetime > 0 {
			time.Sleep(2 * tc.lifetime)
		}
	}
	if tc.lifetime > 0 { // a write gives up what is over
		require.NoError(t, write([]byte{1}, &MessageOptions{Lifetime: tc.lifetime}))
	}
	if tc.end != nil {
		tc.end(w, a, b, s, r)
	}
	time.Sleep(time.Minute)
	if tc.lifetime > 0 && tc.size == 0 {
		w.net.Heal("10.0.0.1", "10.0.0.2")
	}
	_, _ = a.Stats(), s.Stats() // a call of Done that waits keeps no lock
	require.Len(t, results, 1, "one receipt at a time")
	close(held)
	time.Sleep(time.Minute)
	require.Len(t, results, 3)
	for range 3 {
		if err := <-results; tc.want == nil {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, tc.want.Error())
		}
	}
	a.mu.Lock()
	require.Zero(t, receiptsToCome(a))
	a.mu.Unlock()
	w.net.Heal("10.0.0.1", "10.0.0.2")
	_, _ = a.Abort(), b.Abort()
}
