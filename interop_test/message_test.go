package interop

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/arqnet/kcp"
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

// messageTunings are those of the tests of boundaries. The window holds the
// longest message and no more than a second one beside it.
var messageTunings = []tuning{
	{128, 576, nodelay | resend | nc | messages},
	{128, 1200, nodelay | resend | nc | messages},
	{256, 1400, nodelay | resend | nc | messages},
}

// forMessages runs a test for all tunings, paths and roles.
func forMessages(t *testing.T, test func(t *testing.T, n *session, u tuning)) {
	for _, u := range messageTunings {
		for _, path := range []path{direct, lossy} {
			for _, p := range bothWays(party{ours{}, u}, party{theirs{}, u}, path) {
				t.Run(p.name(), func(t *testing.T) {
					t.Parallel()
					n := open(t, p)
					test(t, n, u)
					n.close()
				})
			}
		}
	}
}

// TestMessagesToKCPGo writes messages with every remarkable number of
// fragments, up to the largest, and one byte more and less. Each must come out
// of one Read of kcp-go.
func TestMessagesToKCPGo(t *testing.T) {
	forMessages(t, func(t *testing.T, n *session, u tuning) {
		sizes := boundarySizes(u.mss())
		n.check(pass(n.seed, sizes, sizes, n.ours().WriteMessage, n.theirs().Read))

		err := n.ours().WriteMessage(make([]byte, maxFragments*u.mss()+1))
		require.ErrorIs(t, err, kcp.ErrMessageTooLarge)
		last := []int{maxFragments * u.mss()}
		n.check(pass(n.seed, last, last, n.ours().WriteMessage, n.theirs().Read))
	})
}

// boundarySizes returns sizes around multiples of the segment size.
func boundarySizes(mss int) []int {
	sizes := []int{1, 2}
	for _, fragments := range []int{1, 2, 3, 31, 32, 33, 64, 126, maxFragments} {
		sizes = append(sizes, fragments*mss-1, fragments*mss)
		if fragments < maxFragments {
			sizes = append(sizes, fragments*mss+1)
		}
	}
	return sizes
}

// TestMessagesFromKCPGo has kcp-go write. It makes a message of its own of
// each segment, so a message is a write of one segment at most, and a longer
// write is several.
func TestMessagesFromKCPGo(t *testing.T) {
	forMessages(t, func(t *testing.T, n *session, u tuning) {
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
		n.check(pass(n.seed, sizes, segments, write, n.ours().ReadMessage))
	})
}

// pass writes pieces of the given sizes and reads at the same time. What is
// read must be cut into the sizes wanted, and have the same contents.
func pass(seed uint64, sizes, want []int, write func([]byte) error, read func([]byte) (int, error)) error {
	written := make(chan error, 1)
	go func() {
		content := generator(seed)
		for i, size := range sizes {
			b := make([]byte, size)
			_, _ = content.Read(b) // cannot fail
			if err := write(b); err != nil {
				written <- fmt.Errorf("write %d, of %d bytes: %w", i, size, err)
				return
			}
		}
		written <- nil
	}()
	return errors.Join(readPieces(generator(seed), want, read), <-written)
}

// readPieces reads pieces of the sizes wanted and compares them with content.
func readPieces(content interface{ Read([]byte) (int, error) }, want []int, read func([]byte) (int, error)) error {
	b := make([]byte, messageBuffer)
	for i, size := range want {
		expected := make([]byte, size)
		_, _ = content.Read(expected) // cannot fail
		got, err := read(b)
		switch {
		case err != nil:
			return fmt.Errorf("read %d: %w", i, err)
		case got != size:
			return fmt.Errorf("read %d has %d bytes, want %d", i, got, size)
		case !bytes.Equal(b[:got], expected):
			return fmt.Errorf("read %d, of %d bytes, has changed", i, got)
		}
	}
	return nil
}

// TestMessageBeyondPeerWindow writes messages that kcp-go, with the window
// that it has by default, could never put together. They must be refused, and
// those that fit must go on to pass.
func TestMessageBeyondPeerWindow(t *testing.T) {
	u := tuning{1024, 1400, nodelay | resend | nc | messages}
	narrow := u
	narrow.window = defaultWindow
	for _, path := range []path{direct, lossy} {
		for _, p := range bothWays(party{ours{}, u}, party{theirs{}, narrow}, path) {
			t.Run(p.name(), func(t *testing.T) {
				t.Parallel()
				n := open(t, p)
				mss := u.mss()
				for _, tooLarge := range []int{defaultWindow*mss + 1, (defaultWindow + 1) * mss, maxFragments * mss} {
					err := n.ours().WriteMessage(make([]byte, tooLarge))
					require.ErrorIs(t, err, kcp.ErrMessageTooLarge, "%d bytes", tooLarge)
					fits := []int{defaultWindow * mss, 1, defaultWindow*mss - 1}
					n.check(pass(n.seed, fits, fits, n.ours().WriteMessage, n.theirs().Read))
				}
				n.check(n.transfer(64 * kB))
				n.close()
			})
		}
	}
}
