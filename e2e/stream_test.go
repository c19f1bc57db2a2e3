package e2e

import (
	"net"
	"slices"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// Close says ErrNotDelivered if the peer lacks something of what was written, and
// not if all that it lacks was given up, even if the peer has not learned of that.
func TestCloseAfterGivingUp(t *testing.T) {
	abandoned := kcp.MessageOptions{MaxRetransmits: -1, Lifetime: 300 * time.Millisecond}
	brief, lasting := kcp.MessageOptions{Lifetime: 2 * time.Second}, kcp.MessageOptions{Lifetime: time.Minute}
	var done chan error
	send := func(s *kcp.Stream, size int, o kcp.MessageOptions) {
		o.Done = func(err error) { done <- err }
		_ = s.SendMessage(make([]byte, size), &o)
	}
	givenUp, missing := kcp.ErrMessageAbandoned, kcp.ErrNotDelivered
	for _, tc := range []struct {
		name  string
		write func(s, other *kcp.Stream)
		done  []error // receipts, in the order in which they come
		want  error   // of Close
	}{
		{"reset", func(s, _ *kcp.Stream) {
			send(s, 5000, kcp.MessageOptions{})
			_ = s.Reset(7)
		}, []error{&kcp.StreamError{Code: 7}}, nil},
		{"reset, and bytes", func(s, _ *kcp.Stream) {
			_, _ = s.Write(make([]byte, 5000))
			_ = s.Reset(7)
		}, nil, nil},
		{"bytes", func(s, _ *kcp.Stream) { _, _ = s.Write(make([]byte, 5000)) }, nil, missing},
		{"retransmissions used up", func(s, _ *kcp.Stream) {
			send(s, 5000, kcp.MessageOptions{MaxRetransmits: -1})
		}, []error{givenUp}, nil},
		{"lifetime over", func(s, _ *kcp.Stream) {
			send(s, 100, abandoned)
			send(s, 200000, abandoned) // more than the credit
			send(s, 100, abandoned)
		}, []error{givenUp, givenUp, givenUp}, nil},
		{"many lifetimes over", func(s, other *kcp.Stream) {
			for range 4 {
				send(s, 2000, brief)
				send(other, 100, brief)
			}
		}, slices.Repeat([]error{givenUp}, 8), nil},
		{"lifetime not over", func(s, _ *kcp.Stream) {
			send(s, 100, abandoned)
			send(s, 5000, lasting)
		}, []error{givenUp, missing}, missing},
		{"another stream", func(s, other *kcp.Stream) {
			send(s, 100, abandoned)
			send(other, 10, kcp.MessageOptions{})
		}, []error{givenUp, missing}, missing},
		{"beyond the credit", func(s, other *kcp.Stream) {
			send(other, 200000, kcp.MessageOptions{})
			send(s, 100, abandoned)
		}, []error{givenUp, missing}, missing},
	} {
		for _, heals := range []bool{true, false} {
			inWorld(t, 20, clean, func(t *testing.T, w *world) {
				a, b, _ := w.pair(&kcp.Config{Linger: 3 * time.Second}, nil)
				s, _ := streamPair(t, a, b, nil)
				other, _ := streamPair(t, a, b, nil)
				time.Sleep(time.Second)
				w.cut()
				done = make(chan error, 10)
				tc.write(s, other)
				time.Sleep(time.Second)
				require.ErrorIs(t, a.Close(), tc.want, "%s, heals: %v", tc.name, heals)
				if heals {
					w.heal()
				}
				time.Sleep(3 * time.Minute)
				switch ended := a.Err(); {
				case tc.want != nil:
					require.ErrorIs(t, ended, tc.want, tc.name)
				case heals:
					require.Equal(t, net.ErrClosed, ended, "%s: it goes on in the background", tc.name)
				default:
					isLost(t, ended)
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
