package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/session"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// The end of a stream says whose end it was, and Close of the peer is not what Reset
// with code 0 is.
func TestStreamErrorTexts(t *testing.T) {
	for _, tc := range []struct {
		end  func(s *kcp.Stream) error
		text string
	}{
		{(*kcp.Stream).Close, "kcp: stream closed by the peer"},
		{func(s *kcp.Stream) error { return s.Reset(0) }, "kcp: stream reset by the peer with code 0"},
		{func(s *kcp.Stream) error { return s.Reset(7) }, "kcp: stream reset by the peer with code 7"},
		{func(s *kcp.Stream) error { return s.Reset(1<<62 | 7) }, "kcp: stream reset by the peer with code 7"},
	} {
		inWorld(t, 0, clean, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, nil)
			s := openStream(t, a, nil)
			w.say(s, "x")
			require.NoError(t, tc.end(acceptStream(t, b)))
			time.Sleep(time.Second)
			_, err := s.Write([]byte("late"))
			var reset *kcp.StreamError
			require.ErrorAs(t, err, &reset)
			require.Equal(t, tc.text, reset.Error())
		})
	}
	for err, text := range map[kcp.StreamError]string{
		{}:                                      "kcp: stream reset locally with code 0",
		{Code: kcp.StreamRefused, Remote: true}: "kcp: stream refused by the peer: as many are open as MaxStreams allows",
		{Code: kcp.StreamViolation, Remote: true}: "kcp: stream reset by the peer: protocol violation",
		{Code: kcp.StreamTooLarge, Remote: false}: "kcp: stream reset locally: message larger than the receive buffer",
	} {
		require.Equal(t, text, err.Error())
	}
}

// What is lost on one stream delays no other.
func TestStreamsDoNotWaitForEachOther(t *testing.T) {
	inWorld(t, 4, netsim.LinkConfig{Delay: 50 * time.Millisecond}, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		s1, r1 := streamPair(t, a, b, nil)
		s2, r2 := streamPair(t, a, b, nil)
		time.Sleep(time.Second)
		w.cut()
		w.say(s1, "lost")
		time.Sleep(time.Millisecond)
		w.heal()
		begin := time.Now()
		w.say(s2, "next")
		w.hear(r2, "next")
		require.Equal(t, 50*time.Millisecond, time.Since(begin))
		w.hear(r1, "lost")
		require.Greater(t, time.Since(begin), 100*time.Millisecond)
	})
}

// TryWrite of a stream queues what the write buffer of the stream has room for; the
// peer reads just that.
func TestStreamTryWrite(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		const size = 64 << 10
		a, b, _ := w.pair(&kcp.Config{StreamWriteBuffer: size}, nil)
		s, r := streamPair(t, a, b, nil)
		w.settle()
		w.deaf()
		data := content(1, 3*size)
		n, err := s.TryWrite(data)
		require.Same(t, kcp.ErrWouldBlock, err)
		require.InDelta(t, size, n, size/4)
		for m := 1; m > 0; n += m {
			m, _ = s.TryWrite(data[n:])
		}
		require.Same(t, kcp.ErrWouldBlock, s.WriteMessage(nil, &kcp.MessageOptions{NoWait: true}))
		m, err := s.TryWrite(nil)
		require.NoError(t, err, "as Write")
		require.Zero(t, m)
		w.net.SetFilter(nil)
		receive(t, r, data[:n])
		w.settle()
		m, err = s.TryWrite(data[n : n+10])
		require.NoError(t, err)
		require.Equal(t, 10, m)
		receive(t, r, data[n:n+10])
	})
}

// A write that does not wait comes after a Write that does.
func TestStreamTryWriteBesideWrite(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		s, _ := streamPair(t, a, b, nil)
		written := make(chan error, 1)
		go func() {
			_, err := s.Write(make([]byte, 8<<20)) // which b does not read
			written <- err
		}()
		time.Sleep(time.Second)
		synctest.Wait()
		_, err := s.TryWrite([]byte{1})
		require.Same(t, kcp.ErrWouldBlock, err)
		require.Same(t, kcp.ErrWouldBlock, s.WriteMessage(nil, &kcp.MessageOptions{NoWait: true}))
		require.NoError(t, s.Reset(5))
		require.ErrorIs(t, <-written, net.ErrClosed)
		_, err = s.TryWrite(nil)
		require.ErrorIs(t, err, net.ErrClosed)
		require.NotEqual(t, net.ErrClosed, err, "it is an OpError")
	})
}

// Messages that were taken arrive whole, and those that were refused do not: Done
// is called for the former alone, and late ones make room for new ones.
func TestWriteMessageNoWait(t *testing.T) {
	for _, ofStream := range []bool{true, false} {
		inWorld(t, 1, clean, func(t *testing.T, w *world) {
			config := &kcp.Config{MessageMode: true, StreamWriteBuffer: 64 << 10, WriteBuffer: 64 << 10, SendWindow: 8}
			a, b, _ := w.pair(config, config)
			s, r := streamPair(t, a, b, nil)
			send, read := s.WriteMessage, r.ReadMessage
			if !ofStream {
				send, read = a.WriteMessage, b.ReadMessage
			}
			w.settle()
			w.deaf()
			results := make(chan error, 1000)
			var taken, refused int
			fill := func(lifetime time.Duration) (n int) {
				for {
					o := &kcp.MessageOptions{NoWait: true, Lifetime: lifetime, Done: func(err error) { results <- err }}
					err := send(content(uint64(taken+n), 3000), o)
					if err != nil {
						require.Same(t, kcp.ErrWouldBlock, err)
						refused++
						return n
					}
					n++
				}
			}
			require.Error(t, send(nil, &kcp.MessageOptions{Lifetime: -1}))
			late := fill(100 * time.Millisecond)
			require.Greater(t, late, 10)
			taken += late
			time.Sleep(101 * time.Millisecond)
			if !ofStream { // what follows a message that has begun waits for it
				w.net.SetFilter(nil)
				time.Sleep(time.Second)
			}
			fresh := fill(time.Hour)
			require.Greater(t, fresh, late/2, "late ones make room; of streams: %v", ofStream)
			taken += fresh
			w.net.SetFilter(nil)
			got := make([]byte, 3000)
			for i := late; i < taken; i++ {
				n, err := read(got)
				require.NoError(t, err)
				require.Equal(t, content(uint64(i), 3000), got[:n])
			}
			time.Sleep(time.Second)
			abandoned := 0
			require.Len(t, results, taken)
			for range taken {
				if err := <-results; err != nil {
					require.ErrorIs(t, err, kcp.ErrMessageAbandoned)
					abandoned++
				}
			}
			require.Equal(t, late, abandoned)
		})
	}
}

// TryOpenStream does not wait: of a peer that has not answered it is not known
// whether it takes streams.
func TestTryOpenStream(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		l := w.listen(nil)
		g := kcp.NewGroup()
		require.NoError(t, l.AcceptInto(g))
		e, _ := w.endpoint("10.0.0.2:0", &kcp.Config{DialTimeout: -1})
		a := w.dial(e)
		_, err := a.TryOpenStream(nil)
		require.ErrorIs(t, err, session.ErrKindUnknown)
		writeAll(t, a, []byte{1})
		time.Sleep(time.Second)
		s, err := a.TryOpenStream(nil)
		require.NoError(t, err)
		require.EqualValues(t, 1, s.ID())
		b := take(t, g)[0].Conn
		r, err := b.TryOpenStream(&kcp.StreamOptions{Priority: 3})
		require.NoError(t, err)
		require.Equal(t, 3, r.Options().Priority)
		require.NoError(t, r.WriteMessage([]byte("here"), nil))
		require.NoError(t, r.CloseWrite())
		got, err := io.ReadAll(acceptStream(t, a))
		require.NoError(t, err)
		require.Equal(t, "here", string(got))
		require.NoError(t, a.Abort(0, ""))
		_, err = a.TryOpenStream(nil)
		require.ErrorIs(t, err, net.ErrClosed)
	})
}

// endless is a reader of zeros without end.
type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// callsBesideUpload has a client upload without end, and call the server on another
// stream every 100 ms; calls and answers are of 2 KB, which is two segments. f gets a
// function that makes a call and returns how long it takes, and the server's end of the
// session. lose says which packets of the server's are lost that have as much as an
// answer.
func callsBesideUpload(t *testing.T, link netsim.LinkConfig, lose *func() bool, f func(call func() time.Duration, server *kcp.Conn)) {
	*lose = func() bool { return false }
	inWorld(t, 1, link, func(t *testing.T, w *world) {
		client, server, _ := w.pair(nil, nil)
		up, down := streamPair(t, client, server, nil)
		go func() { _, _ = io.Copy(up, endless{}) }()
		go func() { _, _ = io.Copy(io.Discard, down) }()
		near, far := streamPair(t, client, server, &kcp.StreamOptions{Priority: 1})
		go func() { _, _ = io.CopyBuffer(struct{ io.Writer }{far}, struct{ io.Reader }{far}, make([]byte, 2048)) }()
		w.net.SetFilter(func(from, _ netip.AddrPort, p []byte) bool {
			return from != acceptorAddr || len(p) < 400 || !(*lose)()
		})
		time.Sleep(3 * time.Second) // until the upload is at full speed
		f(func() time.Duration {
			begin := time.Now()
			w.say(near, string(content(1, 2048)))
			receive(t, near, content(1, 2048))
			took := time.Since(begin)
			time.Sleep(time.Until(begin.Add(100 * time.Millisecond)))
			return took
		}, server)
		require.NoError(t, client.Abort(0, ""))
		_ = server.Abort(0, "") // the peer may have ended it
	})
}

// uploadLink has a round trip of 80 ms, and a queue of 100 ms.
var uploadLink = netsim.LinkConfig{Delay: 40 * time.Millisecond, Rate: 20e6 / 8, Queue: 250 << 10}

// An answer that is lost whole is sent again a round trip and some milliseconds later,
// because the upload goes on and does not acknowledge it. So it is if it is lost again.
func TestLostAnswerBesideUpload(t *testing.T) {
	var lose func() bool
	callsBesideUpload(t, uploadLink, &lose, func(call func() time.Duration, server *kcp.Conn) {
		var usual time.Duration
		for range 20 {
			usual = max(usual, call())
		}
		for _, lost := range []int{2, 1, 4} { // both segments, the first, both twice
			left := lost
			lose = func() bool { left--; return left >= 0 }
			took := call()
			t.Logf("%d lost: %v, else up to %v", lost, took, usual)
			require.Negative(t, left)
			require.Less(t, took, usual+time.Duration(max(lost/2, 1))*usual+40*time.Millisecond) // a time-out takes 100 ms more
			for range 5 {
				call()
			}
		}
		require.Less(t, server.Stats().TimeoutRetransmits, uint64(3)) // the upload fills the queue
		require.Less(t, server.Stats().SpuriousRetransmits, uint64(4))
	})
}

// While a path takes nothing of what the server sends, although the upload goes on, an
// answer is sent again ever more seldom.
func TestAnswerIntoOneWayOutage(t *testing.T) {
	var lose func() bool
	callsBesideUpload(t, uploadLink, &lose, func(call func() time.Duration, server *kcp.Conn) {
		for range 20 {
			call()
		}
		packets, until := 0, time.Now().Add(3*time.Second)
		lose = func() bool { packets++; return time.Now().Before(until) }
		call()
		t.Logf("%d packets", packets)
		require.Less(t, packets, 60) // 38 to 46; with a copy each round trip they are 81
	})
}

var slow = netsim.LinkConfig{Delay: slowWay}

// isOpen checks that a stream has not ended.
func isOpen(t *testing.T, s *kcp.Stream) {
	t.Helper()
	select {
	case <-s.Done():
		t.Fatal("ended: ", s.Err())
	default:
		require.NoError(t, s.Err())
	}
}

// streamEnds are the ends of a stream between s and r of a and b, as s sees them.
var streamEnds = []struct {
	name string
	end  func(a, b *kcp.Conn, s, r *kcp.Stream)
	want error
	trip bool // it takes the acknowledgement of the peer
}{
	{"reset by the peer", func(_, _ *kcp.Conn, _, r *kcp.Stream) { _ = r.Reset(7) }, &kcp.StreamError{Code: 7, Remote: true}, false},
	{"reset", func(_, _ *kcp.Conn, s, _ *kcp.Stream) { _ = s.Reset(7) }, &kcp.StreamError{Code: 7}, false},
	{"closed", func(_, _ *kcp.Conn, s, _ *kcp.Stream) { _ = s.Close() }, net.ErrClosed, false},
	{"CloseWrite, then reset by the peer", func(_, _ *kcp.Conn, s, r *kcp.Stream) {
		_ = s.CloseWrite()
		time.Sleep(time.Second)
		_ = r.Reset(7)
	}, &kcp.StreamError{Code: 7, Remote: true}, false},
	{"CloseWrite of both", func(_, _ *kcp.Conn, s, r *kcp.Stream) {
		_ = s.CloseWrite()
		_ = r.CloseWrite()
	}, net.ErrClosed, true},
	{"session closed by the peer", func(_, b *kcp.Conn, _, _ *kcp.Stream) { _ = b.CloseWithError(3, "bye") }, &kcp.PeerCloseError{Code: 3, Text: "bye"}, false},
	{"session aborted by the peer", func(_, b *kcp.Conn, _, _ *kcp.Stream) { _ = b.Abort(0, "") }, kcp.ErrReset, false},
	{"session aborted by the peer, with a reason", func(_, b *kcp.Conn, _, _ *kcp.Stream) { _ = b.Abort(3, "bye") }, &kcp.PeerCloseError{Code: 3, Text: "bye", Aborted: true}, false},
	{"session aborted", func(a, _ *kcp.Conn, _, _ *kcp.Stream) { _ = a.Abort(0, "") }, net.ErrClosed, false},
}

// Done of a stream is closed by each of its ends, and Err says which it was, now
// and later, whether or not Done was called before.
func TestStreamDone(t *testing.T) {
	for _, tc := range streamEnds {
		for _, watched := range []bool{true, false} {
			t.Run(tc.name, func(t *testing.T) {
				inWorld(t, 1, slow, func(t *testing.T, w *world) {
					a, b, _ := w.pair(nil, nil)
					s, r := streamPair(t, a, b, nil)
					time.Sleep(time.Second)
					if watched {
						isOpen(t, s)
					}
					tc.end(a, b, s, r)
					if !watched {
						time.Sleep(time.Second)
					}
					begin := time.Now()
					<-s.Done()
					limit := slowWay + slowWay/2
					if tc.trip {
						limit += slowWay
					}
					require.LessOrEqual(t, time.Since(begin), limit)
					require.Equal(t, tc.want, s.Err())
					_ = r.Reset(9)
					_ = s.Close()
					_ = b.Abort(0, "")
					_ = a.Abort(0, "")
					time.Sleep(time.Second)
					require.Equal(t, tc.want, s.Err())
				})
			})
		}
	}
}

// answered writes n bytes to s, or as many as there is room for, of which r reads 100 and
// answers.
func answered(t *testing.T, s interface{ TryWrite([]byte) (int, error) }, r io.ReadWriter, n int) {
	t.Helper()
	_, err := s.TryWrite(make([]byte, n))
	require.True(t, err == nil || err == kcp.ErrWouldBlock, err)
	receive(t, r, make([]byte, 100))
	writeAll(t, r, []byte("answer"))
}

// The same for a session: the peer answers and closes it. A reason is an error all the
// same.
func TestConnCloseWriteAfterThePeerHasClosed(t *testing.T) {
	for name, tc := range map[string]struct {
		end   func(b *kcp.Conn) error
		write int // bytes
		fails error
	}{
		"Close":                              {(*kcp.Conn).Close, 100, nil},
		"CloseWithError":                     {func(b *kcp.Conn) error { return b.CloseWithError(7, "") }, 100, &kcp.PeerCloseError{Code: 7}},
		"Close before all has left":          {(*kcp.Conn).Close, 400_000, kcp.ErrPeerClosed},
		"CloseWithError before all has left": {func(b *kcp.Conn) error { return b.CloseWithError(7, "") }, 400_000, &kcp.PeerCloseError{Code: 7}},
	} {
		inWorld(t, 1, slow, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, nil)
			answered(t, a, b, tc.write)
			require.NoError(t, tc.end(b))
			time.Sleep(time.Second)
			if err := a.CloseWrite(); tc.fails == nil {
				require.NoError(t, err, name)
			} else {
				require.ErrorContains(t, err, tc.fails.Error(), name)
			}
			_, err := a.Write([]byte("late"))
			require.ErrorIs(t, err, kcp.ErrPeerClosed)
			receive(t, a, []byte("answer"))
		})
	}
}

// A message of MaxMessageSize arrives, and a larger one is refused with its size and the
// limit. A peer that has a larger buffer shows that when it reads.
func TestStreamMaxMessageSize(t *testing.T) {
	const ours = "what fits into Config.StreamReceiveBuffer of this end, and the peer has shown no larger one"
	for size, means := range map[int]string{100000: ours, 1 << 20: "what fits into the peer's Config.StreamReceiveBuffer"} {
		inWorld(t, 1, slow, func(t *testing.T, w *world) {
			a, b, _ := w.pair(&kcp.Config{StreamReceiveBuffer: 100000}, &kcp.Config{StreamReceiveBuffer: size})
			s, r := streamPair(t, a, b, nil)
			least, most, means := 85000, 100000, []string{ours, means}
			for _, means := range means {
				n := s.MaxMessageSize()
				require.Greater(t, n, least)
				require.Less(t, n, most)
				err := s.WriteMessage(make([]byte, n+1), nil)
				require.ErrorIs(t, err, kcp.ErrMessageTooLarge)
				var tooLarge *kcp.SizeError
				require.ErrorAs(t, err, &tooLarge)
				require.EqualError(t, tooLarge, fmt.Sprintf("kcp: message of %d bytes is larger than %d, %s", n+1, n, means))
				require.Equal(t, err, s.WriteMessage(make([]byte, n+1), &kcp.MessageOptions{NoWait: true}))
				require.NoError(t, s.WriteMessage(make([]byte, n), nil))
				got, err := r.ReadMessage(make([]byte, size))
				require.NoError(t, err)
				require.Equal(t, n, got)
				time.Sleep(time.Second)
				if size > most {
					least, most = 9*size/10-100000, size
				}
			}
		})
	}
}

// answerEnds are ways in which a session ends while an answer is sent on stream s of a,
// and how its reader sees that end. Each write returns how much of answer it has queued.
var answerEnds = []struct {
	name  string
	write func(s *kcp.Stream, answer []byte) (n int)
	end   func(a *kcp.Conn, l *kcp.Listener, s *kcp.Stream)
	want  error
}{
	{"CloseWithError during Write", writeAnswer, refuseAnswer, errMaintenance},
	{"Shutdown during Write", writeAnswer, func(_ *kcp.Conn, l *kcp.Listener, _ *kcp.Stream) { _ = l.Endpoint().Shutdown(context.Background()) }, kcp.ErrPeerClosed},
	{"Close during Write, which closes the stream", func(s *kcp.Stream, answer []byte) int {
		defer func() { _ = s.Close() }()
		return writeAnswer(s, answer)
	}, closeAnswer, kcp.ErrPeerClosed},
	{"Close during WriteMessage", func(s *kcp.Stream, answer []byte) (n int) {
		for len(answer) > 0 && s.WriteMessage(answer[:50000], nil) == nil {
			n, answer = n+50000, answer[50000:]
		}
		return n
	}, closeAnswer, kcp.ErrPeerClosed},
	{"Close between calls of TryWriteMessage", func(s *kcp.Stream, answer []byte) int {
		n, _ := s.TryWrite(answer[:200000])
		time.Sleep(2 * time.Second)
		_ = s.WriteMessage(answer[n:n+1], &kcp.MessageOptions{NoWait: true})
		return n
	}, closeAnswer, kcp.ErrPeerClosed},
	{"Close after a deadline", func(s *kcp.Stream, answer []byte) int {
		_ = s.SetWriteDeadline(time.Now().Add(time.Millisecond))
		return writeAnswer(s, answer)
	}, closeAnswer, kcp.ErrPeerClosed},
	{"Close after a TryWrite of a part", func(s *kcp.Stream, answer []byte) int {
		n, _ := s.TryWrite(answer)
		return n
	}, closeAnswer, kcp.ErrPeerClosed},
	{"Close before the answer", func(*kcp.Stream, []byte) int { return 0 }, closeAnswer, kcp.ErrPeerClosed},
	{"CloseWithError after Write", writeSome, refuseAnswer, errMaintenance},
	{"CloseWithError after CloseWrite", writeAndFinish, refuseAnswer, io.EOF},
	{"Close after Write", writeSome, closeAnswer, io.EOF},
	{"Close after a message was missed", func(s *kcp.Stream, answer []byte) (n int) {
		for s.WriteMessage(answer[n:n+1000], &kcp.MessageOptions{NoWait: true}) == nil {
			n += 1000
		}
		return n
	}, closeAnswer, io.EOF},
}

var errMaintenance = &kcp.PeerCloseError{Code: 3, Text: "maintenance"}

func writeAnswer(s *kcp.Stream, answer []byte) int {
	n, _ := s.Write(answer)
	return n
}

// writeSome writes more than the credit, and less than the write buffer.
func writeSome(s *kcp.Stream, answer []byte) int { return writeAnswer(s, answer[:200000]) }

func writeAndFinish(s *kcp.Stream, answer []byte) int {
	n := writeSome(s, answer)
	_ = s.CloseWrite()
	return n
}

func closeAnswer(a *kcp.Conn, _ *kcp.Listener, _ *kcp.Stream) { _ = a.Close() }

func refuseAnswer(a *kcp.Conn, _ *kcp.Listener, _ *kcp.Stream) {
	_ = a.CloseWithError(3, "maintenance")
}

// The end of a session delivers what was written to a stream, and does not make it look
// whole: io.EOF follows only if the writer has closed it, or the session was closed in
// order after something was written, and nothing of it refused.
func TestCutStreamsDoNotLookWhole(t *testing.T) {
	answer := content(1, 20<<20)
	for _, tc := range answerEnds {
		t.Run(tc.name, func(t *testing.T) {
			inWorld(t, 1, slow, func(t *testing.T, w *world) {
				b, a, l := w.pair(nil, nil)
				r, s := streamPair(t, b, a, nil)
				time.Sleep(time.Second)
				written := make(chan int, 1)
				go func() { written <- tc.write(s, answer) }()
				time.Sleep(time.Second)
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					tc.end(a, l, s)
				}()
				time.Sleep(2 * time.Second) // less than Linger
				got, err := io.ReadAll(r)
				if n := <-written; len(got) != n || !bytes.Equal(got, answer[:n]) {
					t.Errorf("%d bytes, want %d", len(got), n)
				}
				if tc.want == io.EOF {
					require.NoError(t, err)
				} else {
					requireCause(t, tc.want, err)
				}
				<-ended
				require.Equal(t, net.ErrClosed, s.Err())
			})
		})
	}
}

// slowWay is the delay of slow.
const slowWay = 40 * time.Millisecond

// requireCause requires that err is want in a *net.OpError.
func requireCause(t *testing.T, want, err error) {
	t.Helper()
	var wrapped *net.OpError
	require.ErrorAs(t, err, &wrapped)
	require.Equal(t, want, wrapped.Err)
}
