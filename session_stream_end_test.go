package kcp

import (
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
	{"session aborted by the peer", func(_, b *Conn, _, _ *Stream) { _ = b.Abort() }, ErrReset, false},
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
