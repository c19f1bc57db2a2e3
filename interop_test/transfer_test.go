package interop

import (
	"fmt"
	"testing"

	"github.com/arqnet/kcp/internal/testenv"
	"github.com/stretchr/testify/require"
)

const (
	kB = 1 << 10
	mB = 1 << 20
)

// row is one set of settings.
type row struct {
	path         path
	size         int
	ours, theirs tuning
}

// Each size, window, MTU and flag is on either path and at either end. With congestion
// control, AIMD is left with two or three segments in a round trip where every tenth
// packet is lost, so those rows of the lossy path are short.
var transferRows = []row{
	{direct, 1, tuning{32, 576, 0}, tuning{32, 576, 0}},
	{direct, 1 * kB, tuning{128, 1200, nodelay | messages}, tuning{32, 1400, nodelay | messages}},
	{direct, 1 * mB, tuning{32, 1400, resend}, tuning{128, 1400, nc | messages}},
	{direct, 1 * mB, tuning{128, 576, nc}, tuning{1024, 1200, nodelay | resend}},
	{direct, 1 * mB, tuning{1024, 1200, nodelay | messages}, tuning{1024, 1200, 0}},
	{direct, 8 * mB, tuning{4096, 1400, allFlags}, tuning{32, 576, nc}},
	{direct, 8 * mB, tuning{128, 1200, 0}, tuning{4096, 1400, messages}},
	{direct, 32 * mB, tuning{4096, 1400, quick}, tuning{4096, 1400, quick}},

	{lossy, 1, tuning{128, 1400, allFlags}, tuning{128, 1400, allFlags}},
	{lossy, 1 * kB, tuning{1024, 1200, nodelay | messages}, tuning{4096, 576, resend}},
	{lossy, 32 * kB, tuning{4096, 1200, messages}, tuning{32, 1200, nodelay | resend}},
	{lossy, 1 * mB, tuning{32, 1400, quick}, tuning{128, 1400, allFlags}},
	{lossy, 1 * mB, tuning{1024, 576, nc}, tuning{1024, 576, nc}},
	{lossy, 8 * mB, tuning{4096, 1400, quick}, tuning{4096, 1200, allFlags}},
}

// shortSize is the most that a row transfers if time is short.
const shortSize = 1 * mB

// TestTransfer moves contents both ways at once, for every row with either end
// listening, or if time is short with one in turn.
func TestTransfer(t *testing.T) {
	for i, r := range transferRows {
		r.run(t, i)
	}
}

func (r row) run(t *testing.T, i int) {
	size := r.size
	if !long || testenv.RaceEnabled {
		size = min(size, shortSize)
	}
	for _, p := range covering(plansOf(ours{tuning: r.ours}, theirs{tuning: r.theirs}, r.path), i) {
		t.Run(fmt.Sprintf("%dB/%s", r.size, p.name()), func(t *testing.T) {
			// Loopback and the largest sizes need the processors: with too many of
			// them at once, queues build up until every segment times out.
			if r.path.relay && size < 8*mB {
				t.Parallel()
			}
			s := newService(t, p)
			s.dial()
			s.transfer(size)
			s.close()
		})
	}
}

// TestCrossProduct crosses paths, sizes, windows and MTUs, and goes through the
// combinations of flags along the way. It leaves out what the window alone, or AIMD where
// packets are lost, makes too slow.
func TestCrossProduct(t *testing.T) {
	if !full {
		t.Skip("takes half an hour: set KCP_INTEROP=full")
	}
	draw := 0
	for _, path := range []path{direct, lossy} {
		for _, size := range []int{1, 1 * kB, 1 * mB, 8 * mB, 32 * mB} {
			for _, window := range []int{32, 128, 1024, 4096} {
				for _, mtu := range []int{576, 1200, 1400} {
					for range 4 {
						us := flags(draw) & allFlags
						them := (flags(draw/16) + us*7) & allFlags
						if path.relay && size > 1*kB {
							us, them = us|nc, them|nc
						}
						draw++
						if windows := size / (window * mtu); windows < 30 || !path.relay && windows < 800 {
							row{path, size, tuning{window, mtu, us}, tuning{window, mtu, them}}.run(t, draw)
						}
					}
				}
			}
		}
	}
}

// TestDefaults has both ends as they are when nobody sets anything: ours in
// stream mode with large windows, kcp-go in message mode with windows of 32
// and a flush every 100 ms.
func TestDefaults(t *testing.T) {
	for path, size := range map[*path]int{&direct: 256 * kB, &lossy: 32 * kB} {
		for _, p := range plansOf(ours{}, theirs{}, *path) {
			t.Run(p.name(), func(t *testing.T) {
				t.Parallel()
				s := newService(t, p)
				s.dial()
				s.transfer(size)
				s.close()
			})
		}
	}
}

// TestWriteThenClose closes our end right after a write that far exceeds what is in
// flight: Close waits until everything is delivered. kcp-go may not have answered yet, or
// may send meanwhile, more than fits anywhere.
func TestWriteThenClose(t *testing.T) {
	u := tuning{512, 1400, quick}
	content := testenv.Content(1, 512*kB)
	closes := func(t *testing.T, n *session) <-chan error {
		closed := make(chan error, 1)
		go func() {
			_, err := n.ours().Write(content)
			if err == nil {
				err = n.ours().Close()
			}
			closed <- err
		}()
		return closed
	}
	plans := plansOf(ours{tuning: u}, theirs{tuning: u}, lossy)
	t.Run("before the peer has answered", func(t *testing.T) {
		t.Parallel()
		n := newService(t, plans[0]).dial()
		closed := closes(t, n)
		n.acceptAll()
		testenv.Receive(t, n.accepted, content)
		require.NoError(t, <-closed)
	})
	for _, p := range plans {
		t.Run(p.name()+"/while the peer sends", func(t *testing.T) {
			t.Parallel()
			n := open(t, p)
			sent := make(chan error, 1)
			go func() {
				var err error
				for b, left := make([]byte, 64*kB), 512; err == nil && left > 0; left-- {
					_, err = n.theirs().Write(b)
				}
				sent <- err
			}()
			closed := closes(t, n)
			testenv.Receive(t, n.theirs(), content)
			require.NoError(t, <-closed)
			require.NoError(t, n.theirs().Close())
			require.Error(t, <-sent, "there was no room for all")
		})
	}
}
