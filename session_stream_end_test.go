package kcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
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
	{"session aborted by the peer", func(_, b *Conn, _, _ *Stream) { _ = b.Abort() }, ErrReset, false},
	{"session aborted by the peer, with a reason", func(_, b *Conn, _, _ *Stream) { _ = b.AbortWithError(3, "bye") }, &PeerCloseError{Code: 3, Text: "bye", Aborted: true}, false},
	{"session aborted", func(a, _ *Conn, _, _ *Stream) { _ = a.Abort() }, net.ErrClosed, false},
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
					limit := oneWay + oneWay/4
					if tc.trip {
						limit += oneWay
					}
					require.LessOrEqual(t, time.Since(begin), limit)
					require.Equal(t, tc.want, s.Err())
					_ = r.Reset(9)
					_ = s.Close()
					_ = b.Abort()
					_ = a.Abort()
					time.Sleep(time.Second)
					require.Equal(t, tc.want, s.Err())
				})
			})
		}
	}
}

// A handler that has read its request to the end, and computes, learns within the way
// of one packet that the peer has reset the stream. What the peer only does not send
// any more does not end it.
func TestStreamDoneWhileComputing(t *testing.T) {
	for _, whole := range []bool{true, false} {
		inWorld(t, 1, slow, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, nil)
			s, r := streamPair(t, a, b, nil)
			_, err := s.Write([]byte("request"))
			require.NoError(t, err)
			if whole {
				require.NoError(t, s.CloseWrite())
				got, err := io.ReadAll(r)
				require.NoError(t, err)
				require.Equal(t, "request", string(got))
			}
			time.Sleep(time.Second)
			isOpen(t, r)
			isOpen(t, s)
			require.NoError(t, s.Reset(7))
			begin := time.Now()
			<-r.Done()
			require.LessOrEqual(t, time.Since(begin), oneWay+oneWay/4)
			require.Equal(t, &StreamError{Code: 7, Remote: true}, r.Err())
		})
	}
}

// CancelRead drops what has arrived and what still does, and stops the peer's writes
// with its code. The other direction goes on to its end.
func TestStreamCancelRead(t *testing.T) {
	inWorld(t, 1, slow, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		s, r := streamPair(t, a, b, nil)
		_, err := s.Write(content(1, 50000))
		require.NoError(t, err)
		time.Sleep(time.Second)
		blocked := make(chan error)
		_, err = io.ReadFull(r, make([]byte, 49000))
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
			_, err = r.Write([]byte("reply"))
			require.NoError(t, err)
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

// Close of the peer is not Reset with code 0, to a writer as to a reader.
func TestStreamClosedOrReset(t *testing.T) {
	for name, tc := range map[string]struct {
		end    func(r *Stream) error
		closed bool
		read   error
	}{
		"Close":       {(*Stream).Close, true, io.EOF},
		"CancelRead":  {func(r *Stream) error { return r.CancelRead(0) }, true, nil},
		"Reset":       {func(r *Stream) error { return r.Reset(0) }, false, &StreamError{Remote: true}},
		"other code":  {func(r *Stream) error { return r.Reset(7) }, false, &StreamError{Code: 7, Remote: true}},
		"cancel code": {func(r *Stream) error { return r.CancelRead(7) }, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 1, slow, func(t *testing.T, w *world) {
				a, b, _ := w.pair(nil, nil)
				s, r := streamPair(t, a, b, nil)
				time.Sleep(time.Second)
				require.NoError(t, tc.end(r))
				time.Sleep(time.Second)
				_, err := s.Write([]byte("late"))
				var reset *StreamError
				require.ErrorAs(t, err, &reset)
				require.Equal(t, tc.closed, errors.Is(err, ErrStreamClosed))
				require.Equal(t, tc.closed, errors.Is(err, syscall.EPIPE))
				require.Equal(t, tc.closed, errors.Is(s.Err(), ErrStreamClosed))
				require.Equal(t, tc.closed, reset.Error() == "kcp: stream closed by the peer", reset.Error())
				if tc.read == nil {
					return
				}
				_, err = s.Read(make([]byte, 1))
				if tc.read == io.EOF {
					require.Equal(t, io.EOF, err)
					return
				}
				require.ErrorAs(t, err, &reset)
				require.Equal(t, tc.read, reset)
			})
		})
	}
}

// A message of MaxMessageSize arrives, and a larger one is refused with its size and the
// limit. A peer that has a larger buffer shows that when it reads.
func TestStreamMaxMessageSize(t *testing.T) {
	for _, size := range []int{100000, 1 << 20} {
		inWorld(t, 1, slow, func(t *testing.T, w *world) {
			a, b, _ := w.pair(&Config{StreamReceiveBuffer: 100000}, &Config{StreamReceiveBuffer: size})
			s, r := streamPair(t, a, b, nil)
			small := s.MaxMessageSize()
			require.Greater(t, small, 85000)
			require.Less(t, small, 100000)
			buf := make([]byte, 1<<20)
			for _, shown := range []bool{false, true} {
				if shown && size > 100000 {
					require.Greater(t, s.MaxMessageSize(), 9*size/10-100000)
					require.Less(t, s.MaxMessageSize(), size)
				} else {
					require.InDelta(t, small, s.MaxMessageSize(), 1000)
				}
				n := s.MaxMessageSize()
				err := s.WriteMessage(make([]byte, n+1))
				require.ErrorIs(t, err, ErrMessageTooLarge)
				var tooLarge *SizeError
				require.ErrorAs(t, err, &tooLarge)
				require.EqualError(t, tooLarge, fmt.Sprintf("kcp: message of %d bytes is larger than %d", n+1, n))
				require.Equal(t, err, s.TryWriteMessage(make([]byte, n+1)))
				require.NoError(t, s.WriteMessage(make([]byte, n)))
				got, err := r.ReadMessage(buf)
				require.NoError(t, err)
				require.Equal(t, n, got)
				time.Sleep(time.Second)
			}
		})
	}
}
