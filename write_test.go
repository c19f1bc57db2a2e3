package kcp

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/crypt"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/stats"
	"github.com/stretchr/testify/require"
)

// small is a session whose write buffer is soon full, because its peer reads
// nothing.
func small(messages bool) *Config {
	return &Config{MessageMode: messages, WriteBuffer: minWriteBuffer, ReceiveWindow: 128, SendWindow: 4}
}

// TryWrite queues what there is room for, and WriteReady says when there is
// more.
func TestTryWrite(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(small(false), nil)
		time.Sleep(time.Second)
		w.deaf()
		data := content(1, 3*minWriteBuffer)
		n, err := a.TryWrite(data[:10])
		require.NoError(t, err)
		require.Equal(t, 10, n)
		room := available(a)
		require.Equal(t, minWriteBuffer-a.Stats().WriteBufferUsed, a.session.Room())
		require.Greater(t, room, 2000)
		m, err := a.TryWrite(data[n : n+room])
		require.NoError(t, err, "of all that is available")
		require.Equal(t, room, m)
		require.LessOrEqual(t, a.Stats().WriteBufferUsed, minWriteBuffer)
		n += m
		for { // what shares a segment costs less
			m, err := a.TryWrite(data[n:])
			n += m
			if err != nil {
				require.Same(t, ErrWouldBlock, err)
				break
			}
		}
		require.Zero(t, available(a))
		require.GreaterOrEqual(t, a.Stats().WriteBufferUsed, minWriteBuffer)
		again, err := a.TryWrite(data[n:])
		require.Same(t, ErrWouldBlock, err)
		require.Zero(t, again)
		ready := a.WriteReady()
		require.Equal(t, ready, a.WriteReady())
		require.False(t, isDone(ready))
		w.net.SetFilter(nil)
		for n < len(data) {
			<-a.WriteReady()
			require.NotZero(t, available(a))
			m, err := a.TryWrite(data[n:])
			require.NotZero(t, m)
			if n += m; n < len(data) {
				require.Same(t, ErrWouldBlock, err)
			}
		}
		require.True(t, isDone(ready))
		receive(t, b, data)
	})
}

// deaf makes all packets be lost.
func (w *world) deaf() { w.net.SetFilter(func(_, _ netip.AddrPort, _ []byte) bool { return false }) }

// After the end there is nothing to wait for, and the errors are those of Write. A write
// of nothing waits for no room.
func TestTryWriteAfterTheEnd(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(a, b *Conn)
		want error
	}{
		"closed":      {func(a, _ *Conn) { _ = a.Close() }, net.ErrClosed},
		"half-closed": {func(a, _ *Conn) { _ = a.CloseWrite() }, net.ErrClosed},
		"aborted":     {func(_, b *Conn) { _ = b.Abort(0, "") }, ErrReset},
		"peer closed": {func(_, b *Conn) { _ = b.Close() }, ErrPeerClosed},
		"deadline":    {func(a, _ *Conn) { _ = a.SetWriteDeadline(time.Now().Add(time.Second)) }, os.ErrDeadlineExceeded},
	} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			config := small(true)
			config.Linger = -1
			a, b, _ := w.pair(config, config)
			for a.WriteMessage(make([]byte, 1000), &MessageOptions{NoWait: true}) == nil {
			}
			writeAll(t, a, nil)
			ready := a.WriteReady()
			require.False(t, isDone(ready), name)
			if name != "peer closed" && name != "aborted" {
				w.deaf()
			}
			c.end(a, b)
			<-ready
			require.ErrorIs(t, a.WriteMessage(nil, &MessageOptions{NoWait: true}), c.want, name)
			_, err := a.TryWrite(nil)
			require.ErrorIs(t, err, c.want)
			require.ErrorAs(t, err, new(*net.OpError))
			require.Zero(t, available(a))
			require.True(t, isDone(a.WriteReady()))
		})
	}
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, _, _ := w.pair(nil, nil)
		require.ErrorIs(t, a.WriteMessage(nil, &MessageOptions{NoWait: true}), session.ErrNotMessageMode)
	})
}

// The more the sessions of an endpoint hold, the less room each has beyond what
// its path needs: 4 MiB at first. What sessions hold is counted, and released. What the
// program has said counts.
func TestWriteMemoryPressure(t *testing.T) {
	full := content(1, session.DefaultWriteBuffer+1)
	inWorld(t, 61, clean, func(t *testing.T, w *world) {
		l := w.listen(nil)
		const segment, stranger = defaultConfigMTU + machine.WriteCostPerSegment, session.WritePressure + 1 // what other sessions hold
		for i, test := range []struct {
			config            Config
			scarce, set, much int // 0: not tried
		}{
			{Config{SendWindow: 32}, session.ScarceWriteBuffer, 0, session.DefaultWriteBuffer},
			{Config{WriteBuffer: 1 << 20}, 1 << 20, 2 << 20, 0},
			{Config{CongestionControl: congestion.NewNone}, session.DefaultWriteBuffer, 0, 0}, // its path takes much
		} {
			e, _ := w.endpoint(fmt.Sprintf("10.0.0.%d:0", i+2), &test.config)
			c := w.dial(e)
			bothWays(t, c, accepted(t, l), []byte("here"), []byte("here"))
			w.net.Cut("10.0.0.1", fmt.Sprint("10.0.0.", i+2))
			held := &e.shared.Load.Written
			fill := func(want int) { // writes until the buffer has no room
				require.NoError(t, c.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
				_, err := c.Write(full)
				require.ErrorIs(t, err, os.ErrDeadlineExceeded)
				require.InDelta(t, want, c.Stats().WriteBufferUsed, segment)
			}
			account := func(want int) { // the account is within two grains of that
				allocated := float64(want) * (1536 + 256) / segment
				require.InDelta(t, allocated/session.WriteGrain, held.Load(), allocated/session.WriteGrain/40+3)
			}
			held.Add(stranger)
			fill(test.scarce)
			require.Zero(t, available(c))
			if test.set > 0 {
				require.NoError(t, c.SetWriteBuffer(test.set))
				fill(test.set)
				require.NoError(t, c.SetWriteBuffer(0))
				require.Zero(t, available(c), "that of the Config again")
			}
			held.Add(-stranger)
			account(max(test.scarce, test.set))
			if test.much > 0 {
				fill(test.much)
				account(test.much)
			}
			require.NoError(t, c.Abort(0, ""))
			require.Zero(t, held.Load(), "what has ended holds nothing")
		}
	})
}

// The more the sessions of an endpoint hold, the less room each has beyond what
// its path needs.
func TestWriteMemoryFollowsPressure(t *testing.T) {
	inWorld(t, 61, clean, func(t *testing.T, w *world) {
		a, _, _ := w.pair(&Config{SendWindow: 1}, nil)
		for held, want := range map[int64]int{
			64 << 20: session.DefaultWriteBuffer, 64<<20 + session.WriteGrain: 256 << 10, 128 << 20: 128 << 10, 512 << 20: 32 << 10, 1 << 30: 16 << 10, 1 << 40: 16 << 10,
		} {
			a.ep.shared.Load.Written.Store(held / session.WriteGrain)
			require.InDelta(t, want, a.session.Inside().WriteBuffer(), 100)
		}
		a.ep.shared.Load.Written.Store(0)
	})
}

// Write, and the channel of WriteReady, are woken when other sessions hold less, although
// the peer is silent. So is a group.
func TestWriteMemoryPressureEnds(t *testing.T) {
	inWorld(t, 62, clean, func(t *testing.T, w *world) {
		_, a, g := w.grouped(nil)
		require.NoError(t, a.SetWindow(32, 0))
		w.net.Cut("10.0.0.1", "10.0.0.2")
		const stranger = session.WritePressure + 1
		a.ep.shared.Load.Written.Add(stranger)
		done := make(chan error, 1)
		go func() {
			_, err := a.Write(make([]byte, 1<<20))
			done <- err
		}()
		time.Sleep(time.Second)
		require.Empty(t, done)
		ready := a.WriteReady()
		require.False(t, isDone(ready))
		require.Zero(t, g.Send([]Outgoing{{Conn: a, Data: []byte("x")}}))
		a.ep.shared.Load.Written.Add(-stranger)
		require.NoError(t, <-done)
		<-ready
		takeOne(t, g, EventWritable)
		require.NoError(t, a.Abort(0, ""))
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

// longestLifetime is the longest lifetime of a message.
const longestLifetime = (1<<32 - 1) * time.Millisecond
