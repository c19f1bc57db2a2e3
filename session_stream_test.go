package kcp

import (
	"context"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/netsim"
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
			greet := func(s signal, dialled bool) {
				info := infoSignal()
				if info.ts |= capStreams; dialled {
					info.ts |= capDialled
				}
				w.net.Inject(server, client, packetOf(conv, bytesOf(s), bytesOf(info)))
			}
			e, _ := w.endpoint("10.0.0.2:5000", nil)
			time.AfterFunc(time.Millisecond, func() { greet(signal{sigHello, 0, tc.hello}, tc.first) })
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
				greet(signal{sigHello | sigAnswer, tc.answer, c.hs.token}, tc.then)
				s, err = open()
			}
			require.NoError(t, err)
			require.Equal(t, tc.ours, s.ID(), name)
			message := (&streams.Header{ID: 3 - tc.ours, Kind: streams.Data, Opens: true, End: true}).Append(nil)
			w.net.Inject(server, client, packetOf(conv, segment(cmdStream, 0, 0, 0, 0, string(message)+"x")))
			r := acceptStream(t, c)
			require.Equal(t, 3-tc.ours, r.ID(), name)
			receive(t, r, []byte("x"))
			time.AfterFunc(time.Second, func() { _ = c.Abort() })
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
