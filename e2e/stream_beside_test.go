package e2e

import (
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

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
