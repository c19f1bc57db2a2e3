package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
)

// bench is two sessions on a virtual network, in virtual time.
type bench struct {
	network  *netsim.Network
	dialed   *kcp.Conn
	accepted *kcp.Conn
	link     netsim.LinkConfig
}

// inBubble runs f with a session whose dialled side has sent "hello".
func inBubble(t *testing.T, f func(t *testing.T, b *bench)) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{link: netsim.LinkConfig{Delay: 20 * time.Millisecond}}
		b.network = netsim.NewNetwork(1, b.link)
		var endpoints [2]*kcp.Endpoint
		for i, addr := range []string{"10.0.0.1:1", "10.0.0.2:1"} {
			socket, err := b.network.Listen(addr)
			require.NoError(t, err)
			defer socket.Close()
			endpoints[i], err = kcp.NewEndpoint(socket, nil)
			require.NoError(t, err)
			defer endpoints[i].Close()
		}
		l, err := endpoints[1].Listen()
		require.NoError(t, err)
		b.dialed, err = endpoints[0].Dial(t.Context(), &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 1})
		require.NoError(t, err)
		_, err = b.dialed.Write([]byte("hello"))
		require.NoError(t, err)
		b.accepted, err = l.AcceptKCP(t.Context())
		require.NoError(t, err)
		f(t, b)
	})
}

// pipe returns a pipe for the accepted side that has nothing to send.
func (b *bench) pipe(out io.Writer) *pipe {
	return &pipe{conn: b.accepted, out: out, quiet: 3 * time.Second, patience: 30 * time.Second}
}

func TestPipeEndsWhenAllIsQuiet(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		var out bytes.Buffer
		start := time.Now()
		require.NoError(t, b.pipe(&out).run(t.Context()))
		require.Equal(t, "hello", out.String())
		require.InDelta(t, 3, time.Since(start).Seconds(), 0.3)
		require.ErrorIs(t, b.accepted.Close(), net.ErrClosed, "the session is left open")
	})
}

func TestPipeWaitsThroughPauses(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		var out bytes.Buffer
		go func() {
			for range 10 {
				time.Sleep(2800 * time.Millisecond)
				_, _ = b.dialed.Write([]byte("."))
			}
		}()
		require.NoError(t, b.pipe(&out).run(t.Context()))
		require.Equal(t, "hello..........", out.String())
	})
}

// The quiet time begins when stdin has ended.
func TestPipeWaitsForStdin(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		var out bytes.Buffer
		stdin, typed := io.Pipe()
		p := b.pipe(&out)
		p.in = newInput(stdin)
		go func() {
			time.Sleep(time.Minute)
			_, _ = typed.Write([]byte("answer"))
			time.Sleep(time.Minute)
			typed.Close()
		}()
		start := time.Now()
		require.NoError(t, p.run(t.Context()))
		require.InDelta(t, 123, time.Since(start).Seconds(), 0.3)
		buf := make([]byte, 10)
		n, err := b.dialed.Read(buf)
		require.NoError(t, err)
		require.Equal(t, "answer", string(buf[:n]))
	})
}

func TestPipeWaitsForEver(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		var out bytes.Buffer
		p := b.pipe(&out)
		p.quiet = -1
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		require.NoError(t, p.run(ctx))
		require.Error(t, ctx.Err(), "ended by itself")
		require.Equal(t, "hello", out.String())
	})
}

func TestPipeNeedsTheFirstByte(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		var out bytes.Buffer
		p := &pipe{conn: b.dialed, out: &out, quiet: 3 * time.Second, patience: 30 * time.Second, needFirst: true}
		go func() {
			time.Sleep(time.Hour)
			_, _ = b.accepted.Write([]byte("at last"))
		}()
		start := time.Now()
		require.NoError(t, p.run(t.Context()))
		require.Equal(t, "at last", out.String())
		require.InDelta(t, 3603, time.Since(start).Seconds(), 0.3)
	})
}

// slowWriter takes a minute for every write.
type slowWriter struct{ bytes.Buffer }

func (w *slowWriter) Write(p []byte) (int, error) {
	time.Sleep(time.Minute)
	return w.Buffer.Write(p)
}

func TestPipeWaitsForSlowStdout(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		large := data(t, 0, 300_000) // of several reads
		go func() { _, _ = b.dialed.Write(large) }()
		var out slowWriter
		require.NoError(t, b.pipe(&out).run(t.Context()))
		requireSame(t, "received", append([]byte("hello"), large...), out.Bytes())
	})
}

// A sender that dies in the middle of a window leaves a hole. That is no end.
func TestPipeFindsMissingBytes(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		time.Sleep(time.Second) // hello is acknowledged, and the window open
		b.network.SetLink("10.0.0.1", "", netsim.LinkConfig{Loss: 1})
		_, err := b.dialed.Write(make([]byte, 1000)) // lost
		require.NoError(t, err)
		b.network.SetLink("10.0.0.1", "", b.link)
		_, err = b.dialed.Write(make([]byte, 1000)) // arrives
		require.NoError(t, err)
		b.network.SetLink("10.0.0.1", "", netsim.LinkConfig{Loss: 1})

		var out bytes.Buffer
		start := time.Now()
		err = b.pipe(&out).run(t.Context())
		require.ErrorContains(t, err, "bytes are missing behind the first 5")
		require.InDelta(t, 30, time.Since(start).Seconds(), 1)
		require.Equal(t, "hello", out.String())
	})
}

// An outage that is longer than the quiet time does no harm to who still has
// something unacknowledged, or knows of bytes that are missing.
func TestPipeSurvivesAnOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		large := data(t, 0, 300_000)
		go func() {
			time.Sleep(300 * time.Millisecond)
			b.network.SetLink("", "", netsim.LinkConfig{Loss: 1})
			time.Sleep(8 * time.Second)
			b.network.SetLink("", "", b.link)
		}()
		sender := &pipe{conn: b.dialed, in: newInput(bytes.NewReader(large)), out: io.Discard, quiet: 3 * time.Second, patience: 30 * time.Second}
		var out bytes.Buffer
		receiver := b.pipe(&out)
		receiver.quiet = 20 * time.Second
		sent := make(chan error)
		go func() { sent <- sender.run(t.Context()) }()
		require.NoError(t, receiver.run(t.Context()))
		require.NoError(t, <-sent)
		requireSame(t, "received", append([]byte("hello"), large...), out.Bytes())
	})
}

func TestPipeTellsOfALostPeer(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.network.SetLink("", "", netsim.LinkConfig{Loss: 1})
		p := b.pipe(io.Discard)
		p.in = newInput(strings.NewReader("into the void"))
		require.ErrorContains(t, p.run(t.Context()), "peer lost: it does not answer (-peer-timeout); nothing heard for 30.0")
	})
}

func TestPipeInterruptedTellsOfWhatIsUndelivered(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.network.SetLink("", "", netsim.LinkConfig{Loss: 1})
		p := b.pipe(io.Discard)
		p.in = newInput(io.MultiReader(strings.NewReader("into the void"), endless(t)))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorContains(t, p.run(ctx), "-linger")
	})
}

// settle waits until the peer has nothing to repeat, if -q has not seen to that.
func TestSettle(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		var out bytes.Buffer
		p := b.pipe(&out)
		p.quiet = 0
		require.NoError(t, p.run(t.Context()))
		socket, err := b.network.Listen("10.0.0.3:1")
		require.NoError(t, err)
		defer socket.Close()
		e, err := kcp.NewEndpoint(socket, nil)
		require.NoError(t, err)
		defer e.Close()
		c, err := e.Dial(t.Context(), &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 1})
		require.NoError(t, err)

		start := time.Now()
		settle(t.Context(), e, settleTime)
		require.Zero(t, time.Since(start), "waited though there was silence enough")
		time.AfterFunc(time.Second, func() { _ = c.Close() })
		settle(t.Context(), e, 0)
		require.InDelta(t, 1, time.Since(start).Seconds(), 0.1)
	})
}

func TestInputReadsAhead(t *testing.T) {
	in := newInput(inChunks("one", "two", "three"))
	require.NoError(t, in.wait(t.Context()))
	require.NoError(t, in.wait(t.Context()), "waiting again takes nothing")
	for _, want := range []string{"one", "two", "three"} {
		got, err := in.next(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	}
	for range 2 {
		_, err := in.next(t.Context())
		require.Equal(t, io.EOF, err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	in = newInput(endless(t))
	require.ErrorIs(t, in.wait(ctx), context.Canceled)

	failure := errors.New("failure")
	in = newInput(io.MultiReader(strings.NewReader("x"), failing{failure}))
	_, err := in.next(t.Context())
	require.NoError(t, err)
	_, err = in.next(t.Context())
	require.Equal(t, failure, err)
}

// inChunks returns a reader that gives one chunk a call.
func inChunks(chunks ...string) io.Reader {
	var readers []io.Reader
	for _, c := range chunks {
		readers = append(readers, strings.NewReader(c))
	}
	return io.MultiReader(readers...)
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
