package interop

import (
	"testing"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

const (
	// maxFragments is how many segments a message may have.
	maxFragments = 127
	// messageBuffer holds any message of either implementation.
	messageBuffer = 256 * 1400
	// defaultWindow is that of kcp-go.
	defaultWindow = 32
)

// forMessages runs a test for windows and MTUs, paths and roles. The window holds the
// longest message and no more than a second one beside it. If narrow is set, kcp-go has
// its default window.
func forMessages(t *testing.T, narrow bool, test func(t *testing.T, n *session, u tuning)) {
	for i, u := range []tuning{{128, 576, allFlags}, {128, 1200, allFlags}, {256, 1400, allFlags}} {
		their := u
		if narrow {
			their.window = defaultWindow
		}
		for _, p := range covering(plansOf(ours{tuning: u}, theirs{tuning: their}, direct, lossy), i) {
			t.Run(p.name(), func(t *testing.T) {
				t.Parallel()
				n := open(t, p)
				test(t, n, u)
				n.close()
			})
		}
	}
}

// TestMessagesToKCPGo writes messages with every remarkable number of
// fragments, up to the largest, and one byte more and less. Each must come out
// of one Read of kcp-go.
func TestMessagesToKCPGo(t *testing.T) {
	forMessages(t, false, func(t *testing.T, n *session, u tuning) {
		sizes := []int{1, 2}
		for _, fragments := range []int{1, 2, 3, 31, 32, 33, 64, 126} {
			sizes = append(sizes, fragments*u.mss()-1, fragments*u.mss(), fragments*u.mss()+1)
		}
		largest := maxFragments * u.mss()
		sizes = append(sizes, largest-1, largest)
		pass(t, sizes, sizes, message(n.ours()), n.theirs().Read)
		require.ErrorIs(t, n.ours().WriteMessage(make([]byte, largest+1), nil), kcp.ErrMessageTooLarge)
		pass(t, []int{largest}, []int{largest}, message(n.ours()), n.theirs().Read)
	})
}

// message returns what writes a message to c.
func message(c *kcp.Conn) func(b []byte) error {
	return func(b []byte) error { return c.WriteMessage(b, nil) }
}

// TestMessagesFromKCPGo has kcp-go write. It makes a message of its own of
// each segment, so a message is a write of one segment at most, and a longer
// write is several.
func TestMessagesFromKCPGo(t *testing.T) {
	forMessages(t, false, func(t *testing.T, n *session, u tuning) {
		mss := u.mss()
		sizes := []int{1, 2, mss - 1, mss, 1, mss, mss / 2, mss + 1, 2 * mss, 3*mss + 5, 1}
		var segments []int
		for _, size := range sizes {
			for ; size > mss; size -= mss {
				segments = append(segments, mss)
			}
			segments = append(segments, size)
		}
		write := func(b []byte) error {
			_, err := n.theirs().Write(b)
			return err
		}
		pass(t, sizes, segments, write, n.ours().ReadMessage)
	})
}

// TestMessageBeyondPeerWindow writes messages that kcp-go, with the window
// that it has by default, could never put together. They must be refused, and
// those that fit must go on to pass.
func TestMessageBeyondPeerWindow(t *testing.T) {
	forMessages(t, true, func(t *testing.T, n *session, u tuning) {
		most := defaultWindow * u.mss()
		for _, tooLarge := range []int{most + 1, most + u.mss(), maxFragments * u.mss()} {
			err := n.ours().WriteMessage(make([]byte, tooLarge), nil)
			require.ErrorIs(t, err, kcp.ErrMessageTooLarge, "%d bytes", tooLarge)
			fits := []int{most, 1, most - 1}
			pass(t, fits, fits, message(n.ours()), n.theirs().Read)
		}
	})
}

// pass writes pieces of the given sizes and reads at the same time. What is
// read must be cut into the sizes wanted, and have the same contents.
func pass(t *testing.T, sizes, want []int, write func([]byte) error, read func([]byte) (int, error)) {
	t.Helper()
	total := 0
	for _, size := range sizes {
		total += size
	}
	content := testenv.Content(caseSeed(t), total)
	written := make(chan error, 1)
	go func() {
		var err error
		left := content
		for _, size := range sizes {
			if err == nil {
				err = write(left[:size])
			}
			left = left[size:]
		}
		written <- err
	}()
	b := make([]byte, messageBuffer)
	left := content
	for i, size := range want {
		got, err := read(b)
		require.NoError(t, err, "read %d", i)
		require.Equal(t, size, got, "read %d", i)
		require.Equal(t, testenv.Sum(left[:size]), testenv.Sum(b[:got]), "read %d, of %d bytes, has changed", i, got)
		left = left[size:]
	}
	require.NoError(t, <-written)
}
