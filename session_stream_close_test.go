package kcp

import (
	"context"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Close says ErrNotDelivered if the peer lacks something of what was written, and
// not if all that it lacks was given up, even if the peer has not learned of that.
func TestCloseAfterGivingUp(t *testing.T) {
	send := func(s *Stream, size int, o MessageOptions, done chan error) {
		o.Done = func(err error) { done <- err }
		_ = s.SendMessage(make([]byte, size), &o)
	}
	abandoned := MessageOptions{MaxRetransmits: -1, Lifetime: 300 * time.Millisecond}
	for _, tc := range []struct {
		name  string
		write func(s, other *Stream, done chan error)
		done  []error // receipts, in the order in which they come
		want  error   // of Close
	}{
		{"reset", func(s, _ *Stream, done chan error) {
			send(s, 5000, MessageOptions{}, done)
			_ = s.Reset(7)
		}, []error{&StreamError{Code: 7}}, nil},
		{"reset, and bytes", func(s, _ *Stream, _ chan error) {
			_, _ = s.Write(make([]byte, 5000))
			_ = s.Reset(7)
		}, nil, nil},
		{"bytes", func(s, _ *Stream, _ chan error) {
			_, _ = s.Write(make([]byte, 5000))
		}, nil, ErrNotDelivered},
		{"retransmissions used up", func(s, _ *Stream, done chan error) {
			send(s, 5000, MessageOptions{MaxRetransmits: -1}, done)
		}, []error{ErrMessageAbandoned}, nil},
		{"lifetime over", func(s, _ *Stream, done chan error) {
			send(s, 100, abandoned, done)
			send(s, 200000, abandoned, done) // more than the credit
			send(s, 100, abandoned, done)
		}, []error{ErrMessageAbandoned, ErrMessageAbandoned, ErrMessageAbandoned}, nil},
		{"many lifetimes over", func(s, other *Stream, done chan error) {
			for range 4 {
				send(s, 2000, MessageOptions{Lifetime: 2 * time.Second}, done)
				send(other, 100, MessageOptions{Lifetime: 2 * time.Second}, done)
			}
		}, slices.Repeat([]error{ErrMessageAbandoned}, 8), nil},
		{"lifetime not over", func(s, _ *Stream, done chan error) {
			send(s, 100, abandoned, done)
			send(s, 5000, MessageOptions{Lifetime: time.Minute}, done)
		}, []error{ErrMessageAbandoned, ErrNotDelivered}, ErrNotDelivered},
		{"another stream", func(s, other *Stream, done chan error) {
			send(s, 100, abandoned, done)
			send(other, 10, MessageOptions{}, done)
		}, []error{ErrMessageAbandoned, ErrNotDelivered}, ErrNotDelivered},
		{"beyond the credit", func(s, other *Stream, done chan error) {
			send(other, 200000, MessageOptions{}, done)
			send(s, 100, abandoned, done)
		}, []error{ErrMessageAbandoned, ErrNotDelivered}, ErrNotDelivered},
	} {
		for _, heals := range []bool{true, false} {
			inWorld(t, 20, clean, func(w *world) {
				a, b, _ := w.pair(&Config{Linger: 3 * time.Second}, nil)
				s, _ := streamPair(t, a, b, nil)
				other, _ := streamPair(t, a, b, nil)
				time.Sleep(time.Second)
				w.net.Cut("10.0.0.1", "10.0.0.2")
				done := make(chan error, 10)
				tc.write(s, other, done)
				time.Sleep(time.Second)
				require.ErrorIs(t, a.Close(), tc.want, "%s, heals: %v", tc.name, heals)
				if heals {
					w.net.Heal("10.0.0.1", "10.0.0.2")
				}
				time.Sleep(3 * time.Minute)
				var lost *PeerLostError
				switch ended := a.Err(); {
				case tc.want != nil:
					require.ErrorIs(t, ended, tc.want, tc.name)
				case heals:
					require.Equal(t, net.ErrClosed, ended, "%s: it goes on in the background", tc.name)
				default:
					require.ErrorAs(t, ended, &lost, tc.name)
				}
				close(done)
				var got []error
				for err := range done {
					got = append(got, err)
				}
				require.Equal(t, len(tc.done), len(got), "%s, heals: %v: %v", tc.name, heals, got)
				for i, want := range tc.done {
					require.Equal(t, want.Error(), got[i].Error(), "%s, heals: %v", tc.name, heals)
				}
			})
		}
	}
}

// Close after both ends have used CloseWrite ends the session at the peer, too, if
// there were streams, even if the first CLOSE is lost: FIN ends no streams.
func TestCloseAfterBothFINs(t *testing.T) {
	inWorld(t, 21, clean, func(w *world) {
		a, b, _ := w.pair(nil, nil)
		s, r := streamPair(t, a, b, nil)
		require.NoError(t, s.Close())
		require.NoError(t, r.Close())
		require.NoError(t, a.CloseWrite())
		require.NoError(t, b.CloseWrite())
		time.Sleep(time.Second)
		w.net.Cut("10.0.0.1", "10.0.0.2")
		time.AfterFunc(100*time.Millisecond, func() { w.net.Heal("10.0.0.1", "10.0.0.2") })
		begin := time.Now()
		require.NoError(t, a.Close())
		_, err := b.AcceptStream(context.Background())
		require.ErrorIs(t, err, ErrPeerClosed)
		require.Less(t, time.Since(begin), time.Second)
		require.NoError(t, b.Close())
	})
}

// The end of a stream says whose end it was. To a writer, Close of the peer is
// what Reset with code 0 is: it reads no more.
func TestStreamErrorTexts(t *testing.T) {
	for _, tc := range []struct {
		end  func(s *Stream) error
		text string
	}{
		{(*Stream).Close, "kcp: stream closed by the peer, or reset with code 0"},
		{func(s *Stream) error { return s.Reset(0) }, "kcp: stream closed by the peer, or reset with code 0"},
		{func(s *Stream) error { return s.Reset(7) }, "kcp: stream reset by the peer with code 7"},
		{func(s *Stream) error { return s.Reset(1<<62 | 7) }, "kcp: stream reset by the peer with code 7"},
	} {
		inWorld(t, 0, clean, func(w *world) {
			a, b, _ := w.pair(nil, nil)
			s, err := a.OpenStream(context.Background(), nil)
			require.NoError(t, err)
			_, err = s.Write([]byte("x"))
			require.NoError(t, err)
			r, err := b.AcceptStream(context.Background())
			require.NoError(t, err)
			require.NoError(t, tc.end(r))
			time.Sleep(time.Second)
			_, err = s.Write([]byte("late"))
			var reset *StreamError
			require.ErrorAs(t, err, &reset)
			require.Equal(t, tc.text, reset.Error())
		})
	}
	for err, text := range map[StreamError]string{
		{}:                      "kcp: stream reset locally with code 0",
		{StreamRefused, true}:   "kcp: stream refused by the peer",
		{StreamViolation, true}: "kcp: stream reset by the peer: protocol violation",
		{StreamTooLarge, false}: "kcp: stream reset locally: message larger than the receive buffer",
	} {
		require.Equal(t, text, err.Error())
	}
}
