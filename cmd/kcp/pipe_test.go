package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
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

// The addresses of a bench.
var dialler, listener = netAddr(1), netAddr(2)

func netAddr(n byte) *net.UDPAddr { return &net.UDPAddr{IP: net.IPv4(10, 0, 0, n), Port: 1} }

// inBubble runs f with a session of two of our endpoints.
func inBubble(t *testing.T, f func(t *testing.T, b *bench)) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		l := b.listen(t)
		e := b.endpoint(t, dialler)
		var err error
		b.dialed, err = e.Dial(t.Context(), listener, nil)
		require.NoError(t, err)
		b.accepted, err = l.AcceptKCP(t.Context())
		require.NoError(t, err)
		f(t, b)
	})
}

func newBench(t *testing.T) *bench {
	b := &bench{link: netsim.LinkConfig{Delay: 20 * time.Millisecond}}
	b.network = netsim.NewNetwork(1, b.link)
	return b
}

func (b *bench) endpoint(t *testing.T, addr *net.UDPAddr) *kcp.Endpoint {
	socket, err := b.network.Listen(addr.String())
	require.NoError(t, err)
	e, err := kcp.NewEndpoint(socket, nil)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, e.Close())
		require.NoError(t, socket.Close())
	})
	return e
}

func (b *bench) listen(t *testing.T) *kcp.Listener {
	l, err := b.endpoint(t, listener).Listen()
	require.NoError(t, err)
	return l
}

// cut loses all that the address sends from now on.
func (b *bench) cut(from *net.UDPAddr) {
	b.network.SetLink(from.IP.String(), "", netsim.LinkConfig{Loss: 1})
}

// end is a pipe at work.
type end struct {
	pipe
	got  bytes.Buffer
	done chan error
	took time.Duration
}

// startPipe runs a pipe; edit, if not nil, may change it before.
func startPipe(ctx context.Context, t *testing.T, conn *kcp.Conn, stdin io.Reader, edit func(*pipe)) *end {
	e := &end{done: make(chan error, 1)}
	e.pipe = pipe{conn: conn, out: &e.got, linger: 5 * time.Second, quiet: 3 * time.Second, patience: 30 * time.Second}
	if stdin != nil {
		in := newInput(stdin)
		e.in = in
		t.Cleanup(func() { // what is left of stdin
			in.start.Do(func() { close(in.chunks) })
			go func() {
				for range in.chunks {
				}
			}()
		})
	}
	if edit != nil {
		edit(&e.pipe)
	}
	began := time.Now()
	go func() {
		err := e.run(ctx)
		e.took = time.Since(began)
		e.done <- err
	}()
	return e
}

// later gives each text after a pause.
func later(pause time.Duration, texts ...string) io.Reader {
	r, w := io.Pipe()
	go func() {
		for _, s := range texts {
			time.Sleep(pause)
			_, _ = io.WriteString(w, s)
		}
		time.Sleep(pause)
		w.Close()
	}()
	return r
}

func TestPipeEndsWithBothEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		up := data(t, 0, 300_000)
		d := startPipe(t.Context(), t, b.dialed, bytes.NewReader(up), nil)
		a := startPipe(t.Context(), t, b.accepted, nil, nil)
		require.NoError(t, <-d.done)
		require.NoError(t, <-a.done)
		requireSame(t, "up", up, a.got.Bytes())
		require.Empty(t, d.got.Bytes())
		require.Less(t, max(a.took, d.took), time.Second, "somebody waits for silence")
		require.ErrorIs(t, b.accepted.Close(), net.ErrClosed, "the session is left open")
		require.ErrorIs(t, b.dialed.Close(), net.ErrClosed, "the session is left open")
	})
}

// One side may end hours before the other, and silence ends nothing.
func TestPipeWaitsForTheOtherEnd(t *testing.T) {
	for name, swap := range map[string]bool{"dialled": false, "accepted": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				first, second := b.dialed, b.accepted
				if swap {
					first, second = second, first
				}
				q := startPipe(t.Context(), t, first, strings.NewReader("question"), nil)
				r := startPipe(t.Context(), t, second, later(time.Hour, "an", "answer"), nil)
				require.NoError(t, <-q.done)
				require.NoError(t, <-r.done)
				require.Equal(t, "question", r.got.String())
				require.Equal(t, "ananswer", q.got.String())
				require.InDelta(t, 3*3600, q.took.Seconds(), 1)
				require.InDelta(t, 3*3600, r.took.Seconds(), 1)
			})
		})
	}
}

// slowWriter takes a minute for every write.
type slowWriter struct{ bytes.Buffer }

func (w *slowWriter) Write(p []byte) (int, error) {
	time.Sleep(time.Minute)
	return w.Buffer.Write(p)
}

// The stdout of the peer may take all the time in the world, also when its
// window is shut and stdin has ended.
func TestPipeWaitsForSlowStdout(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		large := data(t, 0, 5_000_000)
		var out slowWriter
		d := startPipe(t.Context(), t, b.dialed, bytes.NewReader(large), nil)
		a := startPipe(t.Context(), t, b.accepted, nil, func(p *pipe) { p.out = &out })
		require.NoError(t, <-d.done)
		require.NoError(t, <-a.done)
		requireSame(t, "received", large, out.Bytes())
		require.Greater(t, d.took, 10*time.Minute, "the window was never shut")
	})
}

// A peer that has everything, and has ended itself, need not be there any more
// to answer to our end.
func TestPipeNeedsNoAnswerFromThePeerAtTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		require.NoError(t, b.dialed.CloseWrite())
		go func() {
			time.Sleep(1500 * time.Millisecond) // "all" is acknowledged
			b.cut(dialler)
		}()
		a := startPipe(t.Context(), t, b.accepted, later(time.Second, "all"), nil)
		require.NoError(t, <-a.done)
		got, err := io.ReadAll(b.dialed)
		require.NoError(t, err)
		require.Equal(t, "all", string(got))
	})
}

// Whoever is interrupted delivers what there is, and the peer learns that it
// is not all.
func TestPipeInterrupted(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		d := startPipe(ctx, t, b.dialed, io.MultiReader(strings.NewReader("half"), endless(t)), nil)
		a := startPipe(t.Context(), t, b.accepted, endless(t), nil)
		require.Equal(t, errInterrupted, <-d.done)
		require.InDelta(t, 60, d.took.Seconds(), 0.5)
		require.EqualError(t, <-a.done, "the peer was interrupted: data is missing in one direction or both")
		require.InDelta(t, 60, a.took.Seconds(), 0.5)
		require.Equal(t, "half", a.got.String())
	})
}

// A Write that waits for room does not hold an interrupt up.
func TestPipeInterruptedInWrite(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		d := startPipe(ctx, t, b.dialed, bytes.NewReader(make([]byte, 20<<20)), nil) // which nobody reads
		err := <-d.done
		require.EqualError(t, err, "interrupted: the peer did not acknowledge all that was sent")
		require.ErrorIs(t, err, errInterrupted)
		require.InDelta(t, 65, d.took.Seconds(), 0.5)
	})
}

// What stdin gave before it failed is delivered, but not as the whole.
func TestPipeBreaksOffWhenStdinFails(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		broken := io.MultiReader(strings.NewReader("some"), iotest.ErrReader(errors.New("disk on fire")))
		d := startPipe(t.Context(), t, b.dialed, broken, nil)
		a := startPipe(t.Context(), t, b.accepted, nil, nil)
		require.EqualError(t, <-d.done, "reading standard input: disk on fire")
		require.ErrorContains(t, <-a.done, `the peer has failed ("reading standard input failed"): data is missing`)
		require.Equal(t, "some", a.got.String())
	})
}

// A peer that closes reads no more. A pipe that waits for stdin must notice.
func TestPipeSeesThatThePeerCloses(t *testing.T) {
	for name, test := range map[string]struct {
		leave func(*kcp.Conn) error
		want  string
	}{
		"close":                  {(*kcp.Conn).Close, "closed the session"},
		"abort":                  {func(c *kcp.Conn) error { return c.Abort(0, "") }, "broke off"},
		"a code of its own":      {func(c *kcp.Conn) error { return c.CloseWithError(7, "\x1b[2Jgo") }, `with code 7 ("\x1b[2Jgo")`},
		"abort after its end":    {func(c *kcp.Conn) error { _ = c.CloseWrite(); time.Sleep(time.Second); return c.Abort(0, "") }, "broke off"},
		"close after its end":    {func(c *kcp.Conn) error { _ = c.CloseWrite(); time.Sleep(time.Second); return c.Close() }, "closed the session"},
		"gone after its end":     {func(c *kcp.Conn) error { return c.CloseWrite() }, "peer lost"},
		"answer, then it closes": {func(c *kcp.Conn) error { _, _ = c.Write([]byte("bye")); return c.Close() }, "closed the session"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bench) {
				d := startPipe(t.Context(), t, b.dialed, endless(t), nil)
				time.Sleep(time.Second)
				require.NoError(t, test.leave(b.accepted))
				if name == "gone after its end" {
					time.Sleep(time.Second)
					b.cut(listener)
				}
				require.ErrorContains(t, <-d.done, test.want)
				if strings.HasPrefix(name, "answer") {
					require.Equal(t, "bye", d.got.String())
				}
			})
		})
	}
}

// What a peer did not take is no success, even if it has said goodbye.
func TestPipeTellsOfWhatThePeerDidNotTake(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		large := data(t, 0, 3_500_000) // more than the window, less than the write buffer
		d := startPipe(t.Context(), t, b.dialed, bytes.NewReader(large), nil)
		time.Sleep(20 * time.Second)
		require.NoError(t, b.accepted.Close())
		require.ErrorContains(t, <-d.done, "did not acknowledge all that was sent")
	})
}

func TestInputReadsAhead(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := newInput(endless(t)).next(ctx, nil)
	require.ErrorIs(t, err, context.Canceled)
	tick := make(chan time.Time, 1)
	tick <- time.Time{}
	got, err := newInput(endless(t)).next(t.Context(), tick)
	require.NoError(t, err)
	require.Empty(t, got)

	for range 100 { // what has been read is not lost to an interrupt
		in := newInput(endless(t))
		in.start.Do(func() {}) // nobody reads
		in.chunks = make(chan []byte, 1)
		in.chunks <- []byte("read")
		got, err := in.next(ctx, nil)
		require.NoError(t, err)
		require.Equal(t, "read", string(got))
	}

	for _, end := range []error{io.EOF, errors.New("failure")} {
		in := newInput(io.MultiReader(strings.NewReader("x"), iotest.ErrReader(end)))
		got, err = in.next(t.Context(), nil)
		require.NoError(t, err)
		require.Equal(t, "x", string(got))
		for range 2 {
			_, err = in.next(t.Context(), nil)
			require.Equal(t, end, err)
		}
	}
}
