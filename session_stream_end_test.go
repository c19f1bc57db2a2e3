package kcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

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

// streamEnds are the ends of a stream between s and r of a and b, as s sees them.
var streamEnds = []struct {
	name string
	end  func(a, b *Conn, s, r *Stream)
	want error
	trip bool // it takes the acknowledgement of the peer
}{
	{"reset by the peer", func(_, _ *Conn, _, r *Stream) { _ = r.Reset(7) }, &StreamError{Code: 7, Remote: true}, false},
	{"reset", func(_, _ *Conn, s, _ *Stream) { _ = s.Reset(7) }, &StreamError{Code: 7}, false},
	{"closed", func(_, _ *Conn, s, _ *Stream) { _ = s.Close() }, net.ErrClosed, false},
	{"CloseWrite, then reset by the peer", func(_, _ *Conn, s, r *Stream) {
		_ = s.CloseWrite()
		time.Sleep(time.Second)
		_ = r.Reset(7)
	}, &StreamError{Code: 7, Remote: true}, false},
	{"CloseWrite of both", func(_, _ *Conn, s, r *Stream) {
		_ = s.CloseWrite()
		_ = r.CloseWrite()
	}, net.ErrClosed, true},
	{"session closed by the peer", func(_, b *Conn, _, _ *Stream) { _ = b.CloseWithError(3, "bye") }, &PeerCloseError{Code: 3, Text: "bye"}, false},
	{"session aborted by the peer", func(_, b *Conn, _, _ *Stream) { _ = b.Abort(0, "") }, ErrReset, false},
	{"session aborted by the peer, with a reason", func(_, b *Conn, _, _ *Stream) { _ = b.Abort(3, "bye") }, &PeerCloseError{Code: 3, Text: "bye", Aborted: true}, false},
	{"session aborted", func(a, _ *Conn, _, _ *Stream) { _ = a.Abort(0, "") }, net.ErrClosed, false},
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
					limit := oneWay + oneWay/2
					if tc.trip {
						limit += oneWay
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

// The same for a session: the peer answers and closes it. A reason is an error all the
// same.
func TestConnCloseWriteAfterThePeerHasClosed(t *testing.T) {
	for name, tc := range map[string]struct {
		end   func(b *Conn) error
		write int // bytes
		fails error
	}{
		"Close":                              {(*Conn).Close, 100, nil},
		"CloseWithError":                     {func(b *Conn) error { return b.CloseWithError(7, "") }, 100, &PeerCloseError{Code: 7}},
		"Close before all has left":          {(*Conn).Close, 400_000, ErrPeerClosed},
		"CloseWithError before all has left": {func(b *Conn) error { return b.CloseWithError(7, "") }, 400_000, &PeerCloseError{Code: 7}},
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
			require.ErrorIs(t, err, ErrPeerClosed)
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
			a, b, _ := w.pair(&Config{StreamReceiveBuffer: 100000}, &Config{StreamReceiveBuffer: size})
			s, r := streamPair(t, a, b, nil)
			least, most, means := 85000, 100000, []string{ours, means}
			for _, means := range means {
				n := s.MaxMessageSize()
				require.Greater(t, n, least)
				require.Less(t, n, most)
				err := s.WriteMessage(make([]byte, n+1), nil)
				require.ErrorIs(t, err, ErrMessageTooLarge)
				var tooLarge *SizeError
				require.ErrorAs(t, err, &tooLarge)
				require.EqualError(t, tooLarge, fmt.Sprintf("kcp: message of %d bytes is larger than %d, %s", n+1, n, means))
				require.Equal(t, err, s.WriteMessage(make([]byte, n+1), &MessageOptions{NoWait: true}))
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
	write func(s *Stream, answer []byte) (n int)
	end   func(a *Conn, l *Listener, s *Stream)
	want  error
}{
	{"CloseWithError during Write", writeAnswer, refuseAnswer, errMaintenance},
	{"Shutdown during Write", writeAnswer, func(_ *Conn, l *Listener, _ *Stream) { _ = l.Endpoint().Shutdown(context.Background()) }, ErrPeerClosed},
	{"Close during Write, which closes the stream", func(s *Stream, answer []byte) int {
		defer func() { _ = s.Close() }()
		return writeAnswer(s, answer)
	}, closeAnswer, ErrPeerClosed},
	{"Close during WriteMessage", func(s *Stream, answer []byte) (n int) {
		for len(answer) > 0 && s.WriteMessage(answer[:50000], nil) == nil {
			n, answer = n+50000, answer[50000:]
		}
		return n
	}, closeAnswer, ErrPeerClosed},
	{"Close between calls of TryWriteMessage", func(s *Stream, answer []byte) int {
		n, _ := s.TryWrite(answer[:200000])
		time.Sleep(2 * time.Second)
		_ = s.WriteMessage(answer[n:n+1], &MessageOptions{NoWait: true})
		return n
	}, closeAnswer, ErrPeerClosed},
	{"Close after a deadline", func(s *Stream, answer []byte) int {
		_ = s.SetWriteDeadline(time.Now().Add(time.Millisecond))
		return writeAnswer(s, answer)
	}, closeAnswer, ErrPeerClosed},
	{"Close after a TryWrite of a part", func(s *Stream, answer []byte) int {
		n, _ := s.TryWrite(answer)
		return n
	}, closeAnswer, ErrPeerClosed},
	{"Close before the answer", func(*Stream, []byte) int { return 0 }, closeAnswer, ErrPeerClosed},
	{"CloseWithError after Write", writeSome, refuseAnswer, errMaintenance},
	{"CloseWithError after CloseWrite", writeAndFinish, refuseAnswer, io.EOF},
	{"Close after Write", writeSome, closeAnswer, io.EOF},
	{"Close after a message was missed", func(s *Stream, answer []byte) (n int) {
		for s.WriteMessage(answer[n:n+1000], &MessageOptions{NoWait: true}) == nil {
			n += 1000
		}
		return n
	}, closeAnswer, io.EOF},
}

var errMaintenance = &PeerCloseError{Code: 3, Text: "maintenance"}

func writeAnswer(s *Stream, answer []byte) int {
	n, _ := s.Write(answer)
	return n
}

// writeSome writes more than the credit, and less than the write buffer.
func writeSome(s *Stream, answer []byte) int { return writeAnswer(s, answer[:200000]) }

func writeAndFinish(s *Stream, answer []byte) int {
	n := writeSome(s, answer)
	_ = s.CloseWrite()
	return n
}

func closeAnswer(a *Conn, _ *Listener, _ *Stream)  { _ = a.Close() }
func refuseAnswer(a *Conn, _ *Listener, _ *Stream) { _ = a.CloseWithError(3, "maintenance") }

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
					requireSame(t, tc.want, err)
				}
				<-ended
				require.Equal(t, net.ErrClosed, s.Err())
			})
		})
	}
}

// requireSame requires that err is want in a *net.OpError.
func requireSame(t *testing.T, want, err error) {
	t.Helper()
	var wrapped *net.OpError
	require.ErrorAs(t, err, &wrapped)
	require.Equal(t, want, wrapped.Err)
}
