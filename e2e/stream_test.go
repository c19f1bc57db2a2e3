package e2e

import (
	"testing"
	"time"

	"github.com/arqnet/kcp"
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
