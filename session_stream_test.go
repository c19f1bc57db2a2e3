package kcp

import (
	"context"
	"io"
	"net/netip"
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
	for loss, least := range map[float64]float64{0: 0.95, 0.01: 0.7} {
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
