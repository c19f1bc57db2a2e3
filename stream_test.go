package kcp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/machine"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// Under memory pressure the session tells its streams that buffers may not grow.
func TestStreamsDoNotGrowUnderPressure(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		_, b, l := w.pair(nil, nil)
		load, pressure := &l.ep.shared.Load.Buffered, 2*int64(l.ep.config.Limits.MaxBuffered)
		b.mu.Lock()
		defer b.mu.Unlock()
		load.Add(pressure)
		require.True(t, b.session.Inside().StreamHost().MemoryIsShort())
		load.Add(-pressure)
		require.False(t, b.session.Inside().StreamHost().MemoryIsShort())
	})
}

// A HELLO and INFO that are forged, or of an earlier session of the peer, do not
// decide which end opens which streams: the WELCOME, and the INFO that comes with
// it, do. So no stream takes the place of another in the table; its calls would
// never return.
func TestStreamIDsAfterForgedHello(t *testing.T) {
	const smallest, largest = 1, 1<<32 - 1 // of all tokens
	server, client := netip.MustParseAddrPort(serverAddr), netip.MustParseAddrPort("10.0.0.2:5000")
	for name, tc := range map[string]struct {
		quiet         bool   // the end gets HELLO before it has sent its own, and no WELCOME
		hello, answer uint32 // the peer's token in HELLO, and in WELCOME
		first, then   bool   // INFO says that the peer has dialled
		ours          uint32 // the first stream that the end opens
	}{
		"token was smaller":    {false, smallest, largest, true, true, 1},
		"token was larger":     {false, largest, smallest, true, true, 2},
		"has not dialled":      {false, smallest, smallest + 1, true, false, 1},
		"has dialled":          {false, largest, smallest, false, true, 2},
		"same token":           {false, smallest, smallest, true, true, 2},
		"quiet, smaller token": {true, smallest, 0, true, true, 2},
		"quiet, larger token":  {true, largest, 0, true, true, 1},
	} {
		inWorld(t, 20, netsim.LinkConfig{}, func(t *testing.T, w *world) {
			const conv = 5
			greet := func(s wire.Signal, dialled bool) {
				info := session.InfoSignal()
				if info.TS |= session.CapStreams; dialled {
					info.TS |= session.CapDialled
				}
				w.net.Inject(server, client, packetOf(conv, testenv.SegmentOf(s), testenv.SegmentOf(info)))
			}
			e, _ := w.endpoint("10.0.0.2:5000", nil)
			time.AfterFunc(time.Millisecond, func() { greet(wire.Signal{Code: wire.Hello, SN: 0, TS: tc.hello}, tc.first) })
			c := w.dialWith(e, serverAddr, DialOptions{Conv: id(conv), Quiet: tc.quiet})
			time.Sleep(2 * time.Millisecond)
			open := func() (*Stream, error) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				return c.OpenStream(ctx, nil)
			}
			s, err := open()
			require.Equal(t, tc.quiet, err == nil, "%s: before WELCOME", name)
			if !tc.quiet {
				greet(wire.Signal{Code: wire.Welcome, SN: tc.answer, TS: ourToken(c)}, tc.then)
				s, err = open()
			}
			require.NoError(t, err)
			require.Equal(t, tc.ours, s.ID(), name)
			message := (&streams.Header{ID: 3 - tc.ours, Kind: streams.Data, Opens: true, End: true}).Append(nil)
			w.net.Inject(server, client, packetOf(conv, segment(wire.CmdStream, 0, 0, 0, 0, string(message)+"x")))
			r := acceptStream(t, c)
			require.Equal(t, 3-tc.ours, r.ID(), name)
			receive(t, r, []byte("x"))
			time.AfterFunc(time.Second, func() { _ = c.Abort(0, "") })
			_, err = r.Read(make([]byte, 1))
			require.ErrorIs(t, err, net.ErrClosed, name)
		})
	}
}

func openStream(t *testing.T, c *Conn, options *StreamOptions) *Stream {
	t.Helper()
	s, err := c.OpenStream(context.Background(), options)
	require.NoError(t, err)
	return s
}

// ignoreLimit makes c open streams whatever its peer tells, as an old peer would.
func ignoreLimit(c *Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*c.session.Inside().Capabilities() &= 1<<session.CapLimitShift - 1
}

func acceptStream(t *testing.T, c *Conn) *Stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := c.AcceptStream(ctx)
	require.NoError(t, err)
	return s
}

// streamPair returns the two ends of a stream of the session of a and b.
func streamPair(t *testing.T, a, b *Conn, options *StreamOptions) (*Stream, *Stream) {
	t.Helper()
	s := openStream(t, a, options)
	return s, acceptStream(t, b)
}

// A session that is accepted with its first packet, as that shows a cookie, can open
// streams at once: what accepts it may be quicker than what feeds the packet to it.
func TestTryOpenStreamOfFirstPacket(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		e := w.listen(nil).Endpoint()
		remote := &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 1}
		first := admission.First{Initial: admission.Initial{Hello: wire.Signal{Code: wire.Hello, SN: 0, TS: 7}}}
		accepted := func() *Conn {
			c := newConn(e, first.Key, remote, false)
			c.session.Accept(&first, &session.InPacket{}, true)
			return c
		}
		_, err := accepted().TryOpenStream(nil)
		require.ErrorIs(t, err, session.ErrKindUnknown, "nothing says that the peer takes streams")
		first.Info = e.shared.InfoSignal()
		c := accepted()
		s, err := c.TryOpenStream(nil)
		require.NoError(t, err)
		require.NoError(t, s.WriteMessage([]byte("state"), &MessageOptions{NoWait: true}))
		first.Info.TS &^= session.CapStreams
		_, err = accepted().TryOpenStream(nil)
		require.ErrorIs(t, err, errors.ErrUnsupported)
	})
}

// Ways in which the last thing that happens to a stream is a call that fails, or returns
// io.EOF.

// streamFigures is what a session holds because of streams.
type streamFigures struct{ streams, held, fromPeer, refused, ahead, awaited int }

func figuresOf(c *Conn) streamFigures {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.session.Inside().Streams()
	f := t.Figures()
	return streamFigures{f.Streams, f.Held, f.FromPeer, f.Refused, f.IDs, receiptsToCome(c)}
}

// receiptsToCome returns how many messages await a receipt. c.mu is held.
func receiptsToCome(c *Conn) (n int) { return c.session.Inside().Receipts() }

// wantReset checks that err says that the stream was reset.
func wantReset(t *testing.T, err error, code uint64, remote bool) {
	t.Helper()
	var reset *StreamError
	require.ErrorAs(t, err, &reset)
	require.Equal(t, StreamError{Code: code, Remote: remote}, *reset)
}

// A peer without signals takes no streams, nor does one that is set so: both are
// known at once, and the session goes on.
func TestPeersWithoutStreams(t *testing.T) {
	inWorld(t, 11, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, &Config{Limits: Limits{MaxStreams: -1}})
		_, err := a.OpenStream(context.Background(), nil)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, "kcp: the peer takes no streams, as with a negative Limits.MaxStreams")
		bothWays(t, a, b, []byte("up"), []byte("down"))
		a.mu.Lock()
		a.session.Inside().Opening().Peer, *a.session.Inside().Capabilities(), *a.session.Inside().Version() = opening.Legacy, 0, 0
		a.mu.Unlock()
		begin := time.Now()
		_, err = a.OpenStream(context.Background(), nil)
		require.ErrorIs(t, err, ErrLegacyPeer)
		require.Zero(t, time.Since(begin))
		for _, tc := range []struct {
			options StreamOptions
			want    OptionError
		}{
			{StreamOptions{Priority: 8}, OptionError{"StreamOptions.Priority", 8, "must be in [-8, 7]"}},
			{StreamOptions{Priority: -9}, OptionError{"StreamOptions.Priority", -9, "must be in [-8, 7]"}},
			{StreamOptions{MaxLifetime: -1}, OptionError{"StreamOptions.MaxLifetime", time.Duration(-1), "must be in [0s, 1193h2m47.295s]"}},
			{StreamOptions{MaxLifetime: time.Microsecond}, OptionError{"StreamOptions.MaxLifetime", time.Microsecond, "must be at least 1ms, or 0 for no limit"}},
			{StreamOptions{MaxLifetime: longestLifetime + 1}, OptionError{"StreamOptions.MaxLifetime", longestLifetime + 1, "must be in [0s, 1193h2m47.295s]"}},
			{StreamOptions{MaxRetransmits: 65535}, OptionError{"StreamOptions.MaxRetransmits", 65535, "must be at most 65534"}},
		} {
			_, err = a.OpenStream(context.Background(), &tc.options)
			requireOption(t, tc.want, err)
			_, err = a.TryOpenStream(&tc.options)
			requireOption(t, tc.want, err)
		}
		_, err = a.OpenStream(context.Background(), &StreamOptions{Priority: 99})
		require.ErrorContains(t, err, "kcp: StreamOptions.Priority is 99: must be in [-8, 7]")
		_, err = a.OpenStream(context.Background(), &StreamOptions{Priority: 7, MaxLifetime: longestLifetime, MaxRetransmits: 65534})
		require.ErrorIs(t, err, ErrLegacyPeer, "the options are right")
	})
}

// requireOption requires that err has want in it.
func requireOption(t *testing.T, want OptionError, err error) {
	t.Helper()
	var got *OptionError
	require.ErrorAs(t, err, &got)
	require.Equal(t, want, *got)
}

// oneWay is the delay of slow.
const oneWay = 40 * time.Millisecond

var slow = netsim.LinkConfig{Delay: oneWay}

// isOpen checks that a stream has not ended.
func isOpen(t *testing.T, s *Stream) {
	t.Helper()
	select {
	case <-s.Done():
		t.Fatal("ended: ", s.Err())
	default:
		require.NoError(t, s.Err())
	}
}

// CancelRead drops what has arrived and what still does, and stops the peer's writes
// with its code. The other direction goes on to its end.
func TestStreamCancelRead(t *testing.T) {
	inWorld(t, 1, slow, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		s, r := streamPair(t, a, b, nil)
		writeAll(t, s, content(1, 50000))
		time.Sleep(time.Second)
		blocked := make(chan error)
		_, err := io.ReadFull(r, make([]byte, 49000))
		require.NoError(t, err)
		require.NoError(t, r.CancelRead(7))
		go func() {
			_, err := r.Read(make([]byte, 1))
			blocked <- err
		}()
		require.ErrorIs(t, <-blocked, net.ErrClosed)
		require.ErrorIs(t, r.CancelRead(8), net.ErrClosed)
		isOpen(t, r)
		<-s.Done()
		require.Equal(t, &StreamError{Code: 7, Remote: true}, s.Err())
		_, err = s.Write([]byte("more"))
		wantReset(t, err, 7, true)
		wantReset(t, s.CancelWrite(9), 7, true)
		down := content(2, 200000)
		go func() {
			_, _ = r.Write(down) // it is read in full
			_ = r.CloseWrite()
		}()
		got, err := io.ReadAll(s)
		require.NoError(t, err)
		require.Equal(t, down, got)
		<-r.Done()
		require.Equal(t, net.ErrClosed, r.Err())
		time.Sleep(time.Second)
		require.Zero(t, figuresOf(a).streams)
		require.Zero(t, figuresOf(b).streams)
		require.Zero(t, figuresOf(b).held)
	})
}

// CancelWrite drops what was not delivered at both ends, with its code, also after
// CloseWrite. The other direction goes on to its end.
func TestStreamCancelWrite(t *testing.T) {
	for _, finished := range []bool{false, true} {
		inWorld(t, 1, slow, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, nil)
			s, r := streamPair(t, a, b, nil)
			_, err := s.Write(content(1, 150000)) // more than the credit
			require.NoError(t, err)
			if finished {
				require.NoError(t, s.CloseWrite())
			}
			time.Sleep(time.Second)
			require.NoError(t, s.CancelWrite(1<<62|7))
			require.Zero(t, s.Stats().WriteQueued)
			require.Equal(t, &StreamError{Code: 7}, s.Err())
			_, err = s.Write([]byte("more"))
			require.ErrorIs(t, err, net.ErrClosed)
			require.ErrorIs(t, s.CancelWrite(8), net.ErrClosed)
			require.ErrorIs(t, s.CloseWrite(), net.ErrClosed)
			time.Sleep(oneWay + oneWay/4)
			_, err = r.Read(make([]byte, 1))
			wantReset(t, err, 7, true)
			isOpen(t, r)
			writeAll(t, r, []byte("reply"))
			require.NoError(t, r.CloseWrite())
			got, err := io.ReadAll(s)
			require.NoError(t, err)
			require.Equal(t, "reply", string(got))
			time.Sleep(time.Second)
			require.ErrorIs(t, r.CancelWrite(8), net.ErrClosed) // all is delivered
			require.Zero(t, figuresOf(a).streams)
			require.Zero(t, figuresOf(b).streams)
		})
	}
}

// The peer answers and closes the stream before this end has called CloseWrite, which then
// fails only if something that was written was dropped, or the peer has given a code.
func TestCloseWriteAfterThePeerHasClosed(t *testing.T) {
	for name, tc := range map[string]struct {
		end   func(r *Stream) error
		write int // bytes
		fails bool
	}{
		"Close":                        {(*Stream).Close, 100, false},
		"CancelRead":                   {func(r *Stream) error { return r.CancelRead(0) }, 100, false},
		"Close before all has left":    {(*Stream).Close, 400_000, true},
		"Reset":                        {func(r *Stream) error { return r.Reset(0) }, 100, true},
		"CancelRead with another code": {func(r *Stream) error { return r.CancelRead(7) }, 100, true},
	} {
		inWorld(t, 1, slow, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, &Config{StreamReceiveBuffer: 200_000})
			s, r := streamPair(t, a, b, nil)
			answered(t, s, r, tc.write)
			require.NoError(t, tc.end(r))
			time.Sleep(20 * time.Second)
			var reset *StreamError
			require.ErrorAs(t, s.Err(), &reset)
			err := s.CloseWrite()
			require.Equal(t, tc.fails, errors.As(err, &reset), "%s: %v", name, err)
			if tc.fails {
				return
			}
			require.NoError(t, err)
			require.ErrorIs(t, s.CloseWrite(), net.ErrClosed)
			receive(t, s, []byte("answer"))
			_, _ = s.Close(), r.Close()
			time.Sleep(time.Second)
			require.Zero(t, figuresOf(a).streams)
		})
	}
}

// answered writes n bytes to s, or as many as there is room for, of which r reads 100 and
// answers.
func answered(t *testing.T, s interface{ TryWrite([]byte) (int, error) }, r io.ReadWriter, n int) {
	t.Helper()
	_, err := s.TryWrite(make([]byte, n))
	require.True(t, err == nil || err == ErrWouldBlock, err)
	receive(t, r, make([]byte, 100))
	writeAll(t, r, []byte("answer"))
}

// hostileEnds are ways in which a peer ends its streams at once, with something written
// and without, and what an application does with each of them for 20 s, before it closes
// it.
var hostileEnds = map[string]struct{ end, work func(s *Stream) }{
	"Close":        {func(s *Stream) { _ = s.Close() }, func(*Stream) {}},
	"Write, Close": {func(s *Stream) { _, _ = s.Write([]byte("x")); _ = s.Close() }, func(s *Stream) { _, _ = io.ReadAll(s) }},
	"Reset": {func(s *Stream) { _ = s.Reset(7) }, func(s *Stream) {
		_ = s.CancelWrite(3)
		time.Sleep(time.Second) // and comes to read later
	}},
	"Write, Reset": {
		func(s *Stream) { _, _ = s.Write([]byte("x")); time.Sleep(time.Second / 50); _ = s.Reset(0) },
		func(s *Stream) { _ = s.CancelRead(0) },
	},
	"CancelWrite, CancelRead": {
		func(s *Stream) { _ = s.CancelWrite(1); _ = s.CancelRead(2) },
		func(s *Stream) { _, _ = s.Write([]byte("welcome")); _, _ = s.Write([]byte("and more")) },
	},
	"CloseWrite, CancelRead": {func(s *Stream) { _ = s.CloseWrite(); _ = s.CancelRead(0) }, func(s *Stream) { _, _ = io.ReadAll(s) }},
	"against the rules": {func(s *Stream) {
		for _, n := range []machine.Seq{5, 6} {
			s.conn.sendRaw((&streams.Header{ID: s.ID(), Opens: true, Kind: streams.Fin, MID: n}).Append(nil))
		}
	}, func(s *Stream) { _, _ = io.ReadAll(s) }},
	"refused, although it is not": {func(s *Stream) {
		s.conn.sendRaw((&streams.Header{ID: s.ID(), Opens: true, Kind: streams.Reset, Code: StreamRefused}).Append(nil))
	}, func(*Stream) {}},
}

// Whatever the peer does to its streams, at most Limits.MaxStreams are worked on at a
// time: until the application has closed one, it counts (compare CVE-2023-44487). When
// it has closed all, there is room for as many.
func TestStreamsWorkedOnAreBounded(t *testing.T) {
	for name, ways := range hostileEnds {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 1, clean, func(t *testing.T, w *world) {
				const most = 8
				a, b, _ := w.pair(nil, &Config{Limits: Limits{MaxStreams: most}})
				ignoreLimit(a)
				var working atomic.Int64
				var peak testenv.Peak
				var all sync.WaitGroup
				all.Go(func() {
					for {
						s, err := b.AcceptStream(t.Context())
						if err != nil {
							return
						}
						all.Go(func() {
							peak.Saw(working.Add(1))
							ways.work(s)
							time.Sleep(20 * time.Second)
							working.Add(-1)
							_ = s.Close()
						})
					}
				})
				for range 20 {
					for range most {
						ways.end(openStream(t, a, nil))
					}
					time.Sleep(100 * time.Millisecond)
				}
				require.EqualValues(t, most, peak.Load())
				require.Equal(t, most, figuresOf(b).fromPeer)
				time.Sleep(time.Minute)
				require.Zero(t, working.Load())
				require.Zero(t, figuresOf(b).fromPeer)
				refused := b.Endpoint().Totals().Streams.Refused
				require.Positive(t, refused)
				for range most {
					send(t, openStream(t, a, nil), []byte("room again"))
				}
				time.Sleep(time.Second)
				require.EqualValues(t, most, working.Load())
				require.Equal(t, refused, b.Endpoint().Totals().Streams.Refused)
				_, _ = a.Abort(0, ""), b.Abort(0, "")
				all.Wait()
			})
		})
	}
}

// A peer that claims to take more than any default receive buffer grows to is believed as
// far as this end's Config has as much.
func TestShownCreditIsBelievedWithinLimits(t *testing.T) {
	for _, tc := range []struct {
		config Config
		most   int
	}{
		{Config{}, 16 << 20},
		{Config{StreamReceiveBuffer: 64 << 10}, 16 << 20},
		{Config{StreamReceiveBuffer: 32 << 20}, 32 << 20},
		{Config{StreamWriteBuffer: 24 << 20}, 24 << 20},
	} {
		inWorld(t, 5, clean, func(t *testing.T, w *world) {
			a, b, _ := w.pair(&tc.config, nil)
			s, _ := streamPair(t, a, b, nil)
			for _, limit := range []machine.Seq{1 << 30, 1<<31 - 1, 1<<31 + 65535, 1<<32 - 1} {
				b.sendRaw((&streams.Header{ID: s.ID(), Kind: streams.Credit, Limit: limit}).Append(nil))
				time.Sleep(time.Second)
				require.LessOrEqual(t, s.MaxMessageSize(), tc.most)
			}
			require.Greater(t, s.MaxMessageSize(), tc.most/10*9)
			require.ErrorIs(t, s.WriteMessage(make([]byte, tc.most), nil), ErrMessageTooLarge)
		})
	}
}

// streamWriter is a way to write to a stream for ever.
type streamWriter struct {
	name  string
	write func(s *Stream) error
	size  int // bytes of a message
}

var streamWriters = []streamWriter{
	{name: "bytes", size: 1536, write: func(s *Stream) error { _, err := s.Write(make([]byte, 1<<20)); return err }},
	{name: "a few bytes", size: 1536, write: func(s *Stream) error { _, err := s.Write([]byte{1}); return err }},
	{name: "empty messages", write: func(s *Stream) error { return s.WriteMessage(nil, nil) }},
	{name: "messages", size: 1000, write: func(s *Stream) error { return s.WriteMessage(make([]byte, 1000), nil) }},
	{name: "long messages", size: 1 << 20, write: func(s *Stream) error { return s.WriteMessage(make([]byte, 1<<20), nil) }},
}

// blockedStreams has n streams of a write as much as they can. b takes nothing.
// It returns what waits in them.
func blockedStreams(t *testing.T, a *Conn, n int, write func(s *Stream) error) int {
	var all []*Stream
	for range n {
		all = append(all, openStream(t, a, nil))
	}
	var wg sync.WaitGroup
	for _, s := range all {
		require.NoError(t, s.SetWriteDeadline(time.Now().Add(time.Second)))
		wg.Go(func() {
			for write(s) == nil {
			}
		})
	}
	wg.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.session.Inside().Streams().Queued()
}

// writerStack is the most that the stack of a goroutine takes that waits in Write. On
// Windows the least stack is 8 KB, four times that of other systems.
const writerStack = 16 << 10

// A peer that takes nothing on many streams makes the other end hold no more
// than a write buffer, as allocated, and but for the last message: 4 MiB, and
// 256 KiB when memory is short. All of it is counted, and released.
func TestStreamWriteBuffersAreBounded(t *testing.T) {
	t.Parallel()
	sequential(t)
	if !alone(t) {
		return
	}
	require.LessOrEqual(t, int(unsafe.Sizeof(Stream{})), streams.BytesHeld)
	for i, tc := range streamWriters {
		pressed := i%2 == 1
		inWorld(t, 70, clean, func(t *testing.T, w *world) {
			const many = 128
			a, _, _ := w.pair(nil, nil)
			openStream(t, a, nil)
			w.net.Cut("10.0.0.1", "10.0.0.2")
			time.Sleep(time.Second)
			a.mu.Lock()
			at := a.session.Inside().Machine().Position()
			shut := make([]byte, wire.HeaderSize) // as the peer has said last
			(&wire.Header{Conv: a.Conv(), Cmd: wire.CmdWins, Una: at.Acked}).Encode(shut)
			require.NoError(t, a.session.Inside().Machine().Input(shut))
			a.mu.Unlock()
			all, size, others := &a.ep.shared.Load.Written, session.DefaultWriteBuffer, int64(0)
			if pressed {
				size, others = session.ScarceWriteBuffer, session.WritePressure+1
			}
			all.Add(others)
			empty := memoryInUse()
			held := blockedStreams(t, a, many, tc.write)
			grown := memoryInUse() - empty
			last := 2*tc.size + 4*streams.MessageBytesQueued
			require.Greater(t, held, size/2-last, tc.name)
			require.Less(t, held, size+size/8+last, tc.name)                           // the segments of bytes take an eighth more than they count
			require.Less(t, grown, int64(held+held/2+1<<20+many*writerStack), tc.name) // with the streams themselves
			require.InDelta(t, held/session.WriteGrain, all.Load()-others, 5)
			require.EqualValues(t, all.Load()*session.WriteGrain, a.Endpoint().Stats().WriteBuffered)
			require.NoError(t, a.Abort(0, ""))
			require.Equal(t, others, all.Load())
			require.Zero(t, a.session.Inside().Streams().Queued())
		})
	}
}
