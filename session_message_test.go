package kcp

import (
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/stats"
	"github.com/stretchr/testify/require"
)

// What SendMessage refuses, and that it needs message mode.
func TestSendMessageErrors(t *testing.T) {
	inWorld(t, 5, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(&Config{MessageMode: true}, nil)
		never := func(error) { t.Error("a receipt for what was refused") }
		s := openStream(t, a, nil)
		for _, tc := range []struct {
			options MessageOptions
			want    OptionError
		}{
			{MessageOptions{Lifetime: -1}, OptionError{"MessageOptions.Lifetime", time.Duration(-1), "must be in [0s, 1193h2m47.295s]"}},
			{MessageOptions{Lifetime: maxLifetime + 1}, OptionError{"MessageOptions.Lifetime", maxLifetime + 1, "must be in [0s, 1193h2m47.295s]"}},
			{MessageOptions{MaxRetransmits: 65535}, OptionError{"MessageOptions.MaxRetransmits", 65535, "must be at most 65534"}},
		} {
			tc.options.Done = never
			for _, send := range []func([]byte, *MessageOptions) error{a.WriteMessage, s.WriteMessage} {
				requireOption(t, tc.want, send(nil, &tc.options))
			}
		}
		n := a.MaxMessageSize()
		err := a.WriteMessage(make([]byte, n+1), &MessageOptions{Done: never})
		require.ErrorIs(t, err, ErrMessageTooLarge)
		require.ErrorContains(t, err, fmt.Sprintf("kcp: message of %d bytes is larger than %d, the most that 127 segments take", n+1, n))
		require.ErrorIs(t, b.WriteMessage(nil, &MessageOptions{Done: never}), errNotMessageMode)
		require.ErrorIs(t, b.WriteMessage(nil, nil), errNotMessageMode)
		require.NoError(t, a.WriteMessage([]byte("x"), nil))
		require.NoError(t, a.WriteMessage(nil, &MessageOptions{}))
		receive(t, b, []byte("x"))
		n, err = b.ReadMessage(nil)
		require.NoError(t, err)
		require.Zero(t, n)
		require.NoError(t, a.Close())
		require.ErrorIs(t, a.WriteMessage(nil, &MessageOptions{Done: never}), net.ErrClosed)
		require.NoError(t, b.Close())
	})
}

// An abandoned segment outside the window is dropped, as is one of another stream,
// or of another form, for the session itself; and one at an end that takes no
// streams.
func TestBadAbandonedSegments(t *testing.T) {
	abandon := (&streams.Header{Kind: streams.Abandon}).Append(nil)
	for _, v := range []struct {
		name    string
		payload []byte
		sn      machine.Seq // beyond rcv_nxt
		streams int
		want    stats.Drops
		beyond  uint64 // counted as out of the window
	}{
		{name: "as it must be", payload: abandon},
		{name: "outside the window", payload: abandon, sn: 1 << 31, beyond: 1},
		{name: "behind the window", payload: abandon, sn: wire.MaxWindow, beyond: 1},
		{name: "too long", payload: append(slices.Clone(abandon), 0), want: stats.Drops{Stream: 1}},
		{name: "too short", payload: abandon[:10], want: stats.Drops{Stream: 1}},
		{name: "with bit 3", payload: (&streams.Header{Kind: streams.Abandon, End: true}).Append(nil), want: stats.Drops{Stream: 1}},
		{name: "DATA", payload: append((&streams.Header{Kind: streams.Data, End: true}).Append(nil), 0, 0), want: stats.Drops{Stream: 1}},
		{name: "no streams here", payload: abandon, streams: -1, want: stats.Drops{Command: 1}},
	} {
		inWorld(t, 7, clean, func(t *testing.T, w *world) {
			a, b, _ := w.pair(&Config{MessageMode: true}, &Config{Limits: Limits{MaxStreams: v.streams}})
			require.NoError(t, a.WriteMessage([]byte("before"), nil))
			receive(t, b, []byte("before"))
			b.mu.Lock()
			h := wire.Header{Conv: b.Conv(), Cmd: wire.CmdStream, Wnd: 100, SN: b.session.Inside().Machine().Position().Received + v.sn, Una: b.session.Inside().Machine().Position().Acked, Len: uint32(len(v.payload))}
			p := make([]byte, wire.HeaderSize+len(v.payload))
			h.Encode(p)
			copy(p[wire.HeaderSize:], v.payload)
			before := b.session.Inside().Machine().Counts().OutOfWindow
			b.session.Inside().PacketDone(b.session.Inside().Machine().Input(p), len(p), b.ep.now())
			require.Equal(t, v.beyond, b.session.Inside().Machine().Counts().OutOfWindow-before, v.name)
			moved := b.session.Inside().Machine().Position().Received == h.SN+1
			b.mu.Unlock()
			require.Equal(t, v.want, b.Stats().Dropped, v.name)
			require.Equal(t, v.beyond == 0 && v.want.Command == 0, moved, v.name)
			if moved { // the sender would find that out as if it had sent it
				_ = a.Abort(0, "")
				return
			}
			require.NoError(t, a.WriteMessage([]byte("after"), nil))
			receive(t, b, []byte("after"))
			require.NoError(t, a.Close())
		})
	}
}

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
	{name: "reset by the peer", mute: true, want: &StreamError{Code: 7, Remote: true},
		end: func(_ *world, _, _ *Conn, _, r *Stream) { _ = r.Reset(7) }},
	{name: "abort", cut: true, want: net.ErrClosed,
		end: func(_ *world, a, _ *Conn, _, _ *Stream) { _ = a.Abort(0, "") }},
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
	for range 300_000 {
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
		t.Run(tc.name, func(t *testing.T) { inWorld(t, 31, clean, func(t *testing.T, w *world) { tc.run(w) }) })
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
		for s.Stats().WriteQueued == 0 { // r reads nothing
			require.NoError(t, s.WriteMessage(make([]byte, 1000), nil))
			time.Sleep(100 * time.Millisecond)
		}
	}
	results := make(chan error, 100)
	options := &MessageOptions{Lifetime: tc.lifetime}
	write := s.WriteMessage
	if tc.own {
		write = a.WriteMessage
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
	_, _ = a.Abort(0, ""), b.Abort(0, "")
}
