package kcp

import (
	"context"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// carries returns the bytes a second that w carries to r, of n.
func carries(t *testing.T, w io.Writer, r io.Reader, n int) float64 {
	start, want := time.Now(), content(1, n)
	send(t, w, want)
	receive(t, r, want)
	return float64(n) / time.Since(start).Seconds()
}

// One stream carries as much as its session does, at the defaults: its receive
// buffer grows with what the path takes and the application reads. A run over a
// lossy path has between 0.8 and 1.07 of its session, without growth a third.
func TestStreamIsAsFastAsItsSession(t *testing.T) {
	t.Parallel()
	long(t)
	for loss, least := range map[float64]float64{0: 0.95, 0.01: 0.7, 0.05: 0.7} {
		link := netsim.LinkConfig{Delay: 40 * time.Millisecond, Loss: loss}
		var session, stream float64
		for seed := range fewer(4) {
			inWorld(t, seed, link, func(t *testing.T, w *world) {
				a, b, _ := w.pair(nil, nil)
				session += carries(t, a, b, 20<<20)
			})
			inWorld(t, seed, link, func(t *testing.T, w *world) {
				a, b, _ := w.pair(nil, nil)
				s, r := streamPair(t, a, b, nil)
				stream += carries(t, s, r, 20<<20)
			})
		}
		t.Logf("%.0f %%: stream %.3f of its session", 100*loss, stream/session)
		require.Greater(t, stream, least*session)
	}
}

// Of a buffer that does not grow, nearly all is used in a round trip.
func TestStreamCreditIsInTime(t *testing.T) {
	t.Parallel()
	long(t)
	inWorld(t, 1, netsim.LinkConfig{Delay: 40 * time.Millisecond}, func(t *testing.T, w *world) {
		size := 1 << 20
		a, b, _ := w.pair(nil, &Config{StreamReceiveBuffer: size})
		s, r := streamPair(t, a, b, nil)
		carries(t, s, r, 4<<20)
		full := segmentCost(a)
		require.Greater(t, carries(t, s, r, 20<<20)/full, 0.9*float64(size)/(80*time.Millisecond).Seconds())
		require.Zero(t, grownOf(b))
	})
}

// segmentCost returns which part of the credit of full segments is payload.
func segmentCost(c *Conn) float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := float64(c.kcp.cfg.mss)
	return (n - streams.MaxHeader) / (n + streams.SegmentCost)
}

// Only what the application reads, and fast, lets buffers grow, and all of a
// session by so much. What a stream had is there for others once it is over.
func TestStreamGrowthIsBounded(t *testing.T) {
	t.Parallel()
	long(t)
	inWorld(t, 1, netsim.LinkConfig{Delay: 40 * time.Millisecond, Rate: 200 << 20, Queue: 64 << 20}, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		window := func(s *Stream) int {
			b.mu.Lock()
			defer b.mu.Unlock()
			return s.state.Stats().Window
		}
		unread, stuck := streamPair(t, a, b, nil)
		go func() {
			_, _ = unread.Write(content(1, 2<<20)) // it ends with the session
		}()
		slow, reader := streamPair(t, a, b, nil)
		done := make(chan struct{})
		go func() {
			defer close(done)
			send(t, slow, content(2, 4<<20))
			for range 4 << 10 {
				_, _ = io.ReadFull(reader, make([]byte, 1<<10))
				time.Sleep(2 * time.Millisecond)
			}
		}()
		var pairs [4][2]*Stream
		for i := range pairs {
			pairs[i][0], pairs[i][1] = streamPair(t, a, b, nil)
		}
		for i := range pairs {
			carries(t, pairs[i][0], pairs[i][1], 8<<20)
		}
		<-done
		require.Equal(t, streams.InitialCredit, window(stuck))
		require.Equal(t, defaultStreamReceive, window(reader))
		sum := 0
		for _, s := range pairs {
			require.LessOrEqual(t, window(s[1]), maxStreamReceive)
			sum += window(s[1]) - defaultStreamReceive
		}
		require.Positive(t, sum)
		require.LessOrEqual(t, sum, streams.MaxGrowth)
		require.Equal(t, sum, grownOf(b))
		for _, s := range pairs {
			require.NoError(t, s[0].Close())
			require.NoError(t, s[1].Close())
		}
		time.Sleep(time.Second)
		require.Zero(t, grownOf(b))
	})
}

// grownOf returns by how much receive buffers of c's streams have grown.
func grownOf(c *Conn) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.streams.Figures().Grown
}

// Under memory pressure the session tells its streams that buffers may not grow.
func TestStreamsDoNotGrowUnderPressure(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		_, b, l := w.pair(nil, nil)
		load, pressure := &l.ep.load.buffered, 2*int64(l.ep.config.MaxBuffered)
		b.mu.Lock()
		defer b.mu.Unlock()
		load.Add(pressure)
		require.True(t, (*streamHost)(&b.session).MemoryIsShort())
		load.Add(-pressure)
		require.False(t, (*streamHost)(&b.session).MemoryIsShort())
	})
}

// forgedHelloCase is what a peer that takes streams says of itself to an end that
// has dialled: with its HELLO, which may be forged, and with WELCOME.
type forgedHelloCase struct {
	name          string
	quiet         bool   // the end gets HELLO before it has sent its own, and no WELCOME
	hello, answer uint32 // the peer's token
	first, then   bool   // INFO says that the peer has dialled
	odd           bool   // the end opens the odd streams
}

const smallest, largest = 1, 1<<32 - 1 // of all tokens

// A HELLO and INFO that are forged, or of an earlier session of the peer, do not
// decide which end opens which streams: the WELCOME, and the INFO that comes with
// it, do. So no stream takes the place of another in the table; its calls would
// never return.
func TestStreamIDsAfterForgedHello(t *testing.T) {
	for _, tc := range []forgedHelloCase{
		{"token was smaller", false, smallest, largest, true, true, true},
		{"token was larger", false, largest, smallest, true, true, false},
		{"has not dialled", false, smallest, smallest + 1, true, false, true},
		{"has dialled", false, largest, smallest, false, true, false},
		{"same token", false, smallest, smallest, true, true, false},
		{"quiet, smaller token", true, smallest, 0, true, true, false},
		{"quiet, larger token", true, largest, 0, true, true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inWorld(t, 20, netsim.LinkConfig{}, func(t *testing.T, w *world) { (&forgedPeer{w: w, conv: 5}).greets(tc) })
		})
	}
}

// forgedPeer is the peer of a session, whose packets the test makes.
type forgedPeer struct {
	w    *world
	c    *Conn // the other end
	conv uint32
	sn   seq // of the next stream segment
}

func (p *forgedPeer) inject(b []byte) {
	p.w.net.Inject(netip.MustParseAddrPort(serverAddr), netip.MustParseAddrPort("10.0.0.2:5000"), b)
}

// greeting returns a packet with s, and an INFO.
func (p *forgedPeer) greeting(s signal, dialled bool) []byte {
	info := infoSignal()
	if info.ts |= capStreams; dialled {
		info.ts |= capDialled
	}
	return packetOf(p.conv, bytesOf(s), bytesOf(info))
}

// opens sends a message of one byte that opens a stream.
func (p *forgedPeer) opens(id uint32) {
	payload := append((&streams.Header{ID: id, Kind: streams.Data, Opens: true, End: true}).Append(nil), 1)
	b := make([]byte, headerSize)
	(&header{conv: p.conv, cmd: cmdStream, wnd: 128, sn: p.sn, len: uint32(len(payload))}).encode(b)
	p.inject(append(b, payload...))
	p.w.settle()
	p.sn++
}

// opened returns what OpenStream, or AcceptStream, returns within a second.
func opened(call func(context.Context) (*Stream, error)) (*Stream, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return call(ctx)
}

// greets goes through one case.
func (p *forgedPeer) greets(tc forgedHelloCase) {
	t := p.w.t
	e, _ := p.w.endpoint("10.0.0.2:5000", nil)
	hello := p.greeting(signal{sigHello, 0, tc.hello}, tc.first)
	time.AfterFunc(time.Millisecond, func() { p.inject(hello) })
	p.c = p.w.dialWith(e, serverAddr, DialOptions{Conv: id(p.conv), Quiet: tc.quiet})
	time.Sleep(2 * time.Millisecond)
	open := func(ctx context.Context) (*Stream, error) { return p.c.OpenStream(ctx, nil) }
	ours, theirs := uint32(2), uint32(1)
	if tc.odd {
		ours, theirs = theirs, ours
	}
	_, err := opened(open)
	early := err == nil
	if early {
		ours += 2
	}
	if !tc.quiet {
		p.opens(theirs)
		p.sn-- // it was not acknowledged
		p.c.mu.Lock()
		token := p.c.hs.token
		p.c.mu.Unlock()
		p.inject(p.greeting(signal{sigHello | sigAnswer, tc.answer, token}, tc.then))
	}
	var reading, ended atomic.Int32
	for range 2 {
		p.opens(theirs)
		s, err := opened(p.c.AcceptStream)
		if theirs += 2; !assert.NoError(t, err) {
			continue
		}
		assert.Equal(t, theirs-2, s.ID())
		reading.Add(1)
		go func() {
			for err := error(nil); err == nil; {
				_, err = s.ReadMessage(make([]byte, 1))
			}
			ended.Add(1)
		}()
	}
	for range 3 {
		if s, err := opened(open); assert.NoError(t, err) {
			assert.Equal(t, ours, s.ID())
		}
		ours += 2
	}
	require.NoError(t, p.c.Abort())
	p.w.settle()
	assert.Equal(t, reading.Load(), ended.Load(), "Read goes on after the end of the session")
	assert.Equal(t, tc.quiet, early, "a stream was opened before WELCOME")
}

// Idle streams are small, and those that are over leave nothing: no memory, no
// entry of a table, no credit.
func TestManyStreams(t *testing.T) {
	t.Parallel()
	sequential(t)
	if !alone(t) {
		return
	}
	idle, total := int(fewer(10000)), 100000
	if testing.Short() {
		total = idle + 1500
	}
	inWorld(t, 17, clean, func(t *testing.T, w *world) {
		config := &Config{MaxStreams: idle}
		a, b, _ := w.pair(config, config)
		s, r := streamPair(t, a, b, nil)
		require.NoError(t, s.Close())
		require.NoError(t, r.Close())
		time.Sleep(5 * time.Second)
		before := memoryInUse()
		mine, theirs := make([]*Stream, idle), make([]*Stream, idle)
		for i := range mine {
			mine[i] = openStream(t, a, nil)
			if i%1000 == 999 {
				time.Sleep(100 * time.Millisecond)
			}
		}
		for i := range theirs {
			theirs[i] = acceptStream(t, b)
		}
		time.Sleep(5 * time.Second)
		each := (memoryInUse() - before) / int64(2*idle)
		t.Logf("%d bytes for each end of a stream", each)
		require.LessOrEqual(t, each, int64(1024))
		for i := range mine {
			require.NoError(t, mine[i].Close())
			require.NoError(t, theirs[i].Close())
		}
		mine, theirs = nil, nil
		time.Sleep(5 * time.Second)
		for i := idle; i < total; i++ {
			useAndClose(t, a, b, i)
		}
		time.Sleep(5 * time.Second)
		for _, c := range []*Conn{a, b} {
			require.Zero(t, figuresOf(c))
			c.mu.Lock()
			require.Zero(t, c.kcp.WaitSend()+int(c.kcp.rcv.queue.n+c.kcp.rcv.early))
			require.False(t, c.streams.Busy())
			f := c.streams.Figures()
			require.Zero(t, f.Openings+f.Backlog)
			c.mu.Unlock()
		}
		left := memoryInUse() - before
		t.Logf("%d streams have left %d bytes", total, left)
		// Stacks and spans of the runtime, which come and go, are about 200 KB.
		require.LessOrEqual(t, left, int64(384<<10+2*total))
		s, r = streamPair(t, a, b, nil)
		bothWays(t, s, r, content(1, 3*streams.InitialCredit), content(2, 3*streams.InitialCredit))
		bothWays(t, a, b, content(3, 3*streams.InitialCredit), content(4, 3*streams.InitialCredit))
		runtime.KeepAlive(mine)
		runtime.KeepAlive(theirs)
	})
}

// useAndClose opens a stream, and ends it in one of several ways.
func useAndClose(t *testing.T, a, b *Conn, i int) {
	if i%2 == 1 {
		a, b = b, a
	}
	s := openStream(t, a, nil)
	require.NoError(t, s.SendMessage([]byte("message"), &MessageOptions{Done: func(error) {}, Lifetime: time.Duration(i%3) * time.Second}))
	r := acceptStream(t, b)
	switch i % 5 {
	case 0:
		require.NoError(t, s.Reset(1))
		require.NoError(t, r.Close())
	case 1: // not read
		require.NoError(t, r.Close())
		require.NoError(t, s.Close())
	default:
		receive(t, r, []byte("message"))
		require.NoError(t, s.Close())
		require.NoError(t, r.Close())
	}
}

// What arrives on streams and is not read is held for no longer than the
// application can read it: on a stream that goes on, on one that is over, and on
// one that was not accepted. When the session ends without that, its endpoint holds
// nothing.
func TestUnreadStreamsAreReleased(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(t *testing.T, a, b *Conn, streams []*Stream)
		want error // of reading afterwards
	}{
		{"closed", func(t *testing.T, _, b *Conn, _ []*Stream) { require.NoError(t, b.Close()) }, net.ErrClosed},
		{"aborted", func(t *testing.T, _, b *Conn, _ []*Stream) { require.NoError(t, b.Abort()) }, net.ErrClosed},
		{"out of memory", func(_ *testing.T, _, b *Conn, _ []*Stream) { b.shedMemory() }, ErrMemoryPressure},
		{"ended, then closed", func(t *testing.T, a, b *Conn, _ []*Stream) {
			require.NoError(t, a.Abort())
			time.Sleep(time.Second)
			require.Greater(t, b.ep.Stats().Buffered, 15000-accountGrain)
			require.NoError(t, b.Close())
		}, net.ErrClosed},
		{"ended, then streams closed", func(t *testing.T, a, _ *Conn, streams []*Stream) {
			require.NoError(t, a.Abort())
			time.Sleep(time.Second)
			for _, s := range streams {
				require.NoError(t, s.Close())
			}
		}, net.ErrClosed},
		{"ended, then read", func(t *testing.T, a, _ *Conn, streams []*Stream) {
			require.NoError(t, a.Abort())
			time.Sleep(time.Second)
			for i, s := range streams {
				receive(t, s, content(uint64(i), 5000))
			}
		}, ErrReset},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inWorld(t, 20, clean, func(t *testing.T, w *world) {
				a, b, _ := w.pair(nil, nil)
				var streams []*Stream
				for i := range uint64(3) {
					s := openStream(t, a, nil)
					_, err := s.Write(content(i, 5000))
					require.NoError(t, err)
					if i < 2 || tc.want == ErrReset || tc.name == "ended, then streams closed" {
						streams = append(streams, acceptStream(t, b))
					}
					if i == 0 {
						require.NoError(t, s.Close())
						require.NoError(t, streams[0].CloseWrite())
					}
				}
				time.Sleep(time.Second)
				require.Greater(t, b.ep.Stats().Buffered, 15000-accountGrain)
				tc.end(t, a, b, streams)
				time.Sleep(time.Minute)
				require.Zero(t, b.ep.Stats().Buffered)
				require.Zero(t, b.streams.Held())
				for _, s := range streams {
					_, err := s.Read(make([]byte, 1))
					if s.closed {
						require.ErrorIs(t, err, net.ErrClosed)
					} else if s.ID() > 1 {
						require.ErrorIs(t, err, tc.want)
					}
				}
				_, _ = a.Abort(), b.Abort()
			})
		})
	}
}

// What arrives on streams of a session that nobody accepts is not held after the
// listener has ended.
func TestStreamsOfUnacceptedSessions(t *testing.T) {
	inWorld(t, 21, clean, func(t *testing.T, w *world) {
		l := w.listen(nil)
		e, _ := w.endpoint("10.0.0.2:0", nil)
		c := w.dial(e)
		s := openStream(t, c, nil)
		_, err := s.Write(content(1, 5000))
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.Greater(t, l.ep.Stats().Buffered, 5000)
		require.NoError(t, c.Abort())
		time.Sleep(time.Minute)
		require.NoError(t, l.Close())
		time.Sleep(time.Minute)
		require.Zero(t, l.ep.Stats().Buffered)
	})
}

// A Close that waits for a stream without a reader goes on to its end when the
// peer closes the session meanwhile.
func TestCloseBesideUnreadStreamMeetsClose(t *testing.T) {
	inWorld(t, 22, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		s := openStream(t, a, nil)
		_, err := s.Write(make([]byte, 200000)) // more than the credit
		require.NoError(t, err)
		closed := make(chan error, 1)
		go func() { closed <- a.Close() }()
		time.Sleep(time.Second)
		require.NoError(t, b.Close())
		require.ErrorIs(t, <-closed, ErrNotDelivered)
		time.Sleep(2 * time.Minute)
		require.Zero(t, a.ep.Stats().Sessions)
		require.Zero(t, b.ep.Stats().Sessions)
	})
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
	c.hs.capabilities &= 1<<capLimitShift - 1
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

// Bytes go both ways over many streams at once, opened by both ends, and over
// the session itself, each in order and to its end, whatever is lost.
func TestStreams(t *testing.T) {
	for seed := range fewer(8) {
		inWorld(t, seed, lossy, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, nil)
			var wg sync.WaitGroup
			for i := range 10 {
				from, to := a, b
				if i%2 == 1 {
					from, to = b, a
				}
				s, r := streamPair(t, from, to, nil)
				require.Equal(t, s.ID(), r.ID())
				up, down := content(seed+uint64(i), 40000+i), content(seed+100+uint64(i), 10000)
				wg.Go(func() {
					bothWays(t, s, r, up, down)
					require.NoError(t, s.CloseWrite())
					_, err := r.Read(make([]byte, 1))
					require.Equal(t, io.EOF, err)
					require.NoError(t, r.Close())
					_, err = s.Read(make([]byte, 1))
					require.Equal(t, io.EOF, err)
					require.NoError(t, s.Close())
				})
			}
			bothWays(t, a, b, content(seed, 100000), content(seed+1, 100000))
			wg.Wait()
			time.Sleep(5 * time.Second)
			for _, c := range []*Conn{a, b} {
				c.mu.Lock()
				require.Zero(t, c.streams.Len())
				require.Zero(t, c.streams.Held())
				require.Zero(t, c.streams.Figures().FromPeer)
				c.mu.Unlock()
				require.Zero(t, c.Stats().Dropped.Total())
			}
			require.NoError(t, a.Close())
			require.NoError(t, b.Close())
		})
	}
}
