package interop

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	kB = 1 << 10
	mB = 1 << 20

	// shortSize bounds a transfer of TestTransfer with -short. It still exceeds
	// the largest window.
	shortSize = 8 * mB
)

// row is one set of settings; it is tried with either end listening.
type row struct {
	path   path
	size   int64
	ours   tuning
	theirs tuning
}

// Every value of every setting is on either path, as TestTransferRows checks.
// With congestion control, AIMD is left with two or three segments in a round
// trip where every tenth packet is lost, so those rows of the lossy path are
// short.
var transferRows = []row{
	{direct, 1, tuning{32, 576, noFlags}, tuning{32, 576, noFlags}},
	{direct, 1, tuning{4096, 1400, allFlags}, tuning{4096, 1400, allFlags}},
	{direct, 1 * kB, tuning{128, 1200, nodelay | messages}, tuning{128, 1200, resend | nc}},
	{direct, 1 * kB, tuning{32, 1400, nc | messages}, tuning{32, 1400, nodelay | messages}},
	{direct, 1 * mB, tuning{32, 1400, resend}, tuning{32, 1400, nc | messages}},
	{direct, 1 * mB, tuning{128, 576, nc}, tuning{128, 576, nodelay | resend}},
	{direct, 1 * mB, tuning{1024, 1200, nodelay | messages}, tuning{1024, 1200, noFlags}},
	{direct, 8 * mB, tuning{1024, 1400, nodelay | resend}, tuning{1024, 1400, nodelay | resend}},
	{direct, 8 * mB, tuning{128, 1200, noFlags}, tuning{4096, 1400, messages}},
	{direct, 8 * mB, tuning{4096, 1400, nc | resend | messages}, tuning{32, 576, nc}},
	{direct, 32 * mB, tuning{4096, 1400, nodelay | resend | nc}, tuning{4096, 1400, nodelay | resend | nc}},
	{direct, 32 * mB, tuning{1024, 1200, nc | messages}, tuning{1024, 1200, nodelay | messages}},
	{direct, 32 * mB, tuning{128, 1400, nodelay}, tuning{128, 1400, nc}},
	{direct, 32 * mB, tuning{4096, 576, resend | nc | messages}, tuning{4096, 576, nc | messages}},
	{direct, 32 * mB, tuning{32, 1400, nodelay | resend | nc}, tuning{32, 1400, nodelay | resend | nc}},

	{lossy, 1, tuning{32, 576, noFlags}, tuning{32, 576, noFlags}},
	{lossy, 1, tuning{128, 1400, allFlags}, tuning{128, 1400, allFlags}},
	{lossy, 1 * kB, tuning{1024, 1200, nodelay | messages}, tuning{1024, 1200, messages}},
	{lossy, 1 * kB, tuning{4096, 576, resend}, tuning{4096, 576, nodelay | resend}},
	{lossy, 32 * kB, tuning{128, 1400, nodelay | resend}, tuning{128, 1400, nodelay | resend}},
	{lossy, 32 * kB, tuning{4096, 1200, messages}, tuning{4096, 1200, noFlags}},
	{lossy, 1 * mB, tuning{32, 1400, nodelay | resend | nc}, tuning{32, 1400, nodelay | resend | nc | messages}},
	{lossy, 1 * mB, tuning{128, 1200, nodelay | nc | messages}, tuning{128, 1200, nodelay | nc}},
	{lossy, 1 * mB, tuning{1024, 576, nc}, tuning{1024, 576, nc}},
	{lossy, 1 * mB, tuning{4096, 1400, allFlags}, tuning{32, 576, allFlags}},
	{lossy, 8 * mB, tuning{1024, 1400, nodelay | resend | nc | messages}, tuning{1024, 1400, nodelay | resend | nc}},
	{lossy, 8 * mB, tuning{4096, 576, nc}, tuning{4096, 576, nodelay | nc | messages}},
	{lossy, 32 * mB, tuning{4096, 1400, nodelay | resend | nc}, tuning{4096, 1400, nodelay | resend | nc}},
	{lossy, 32 * mB, tuning{1024, 1400, allFlags}, tuning{4096, 1200, allFlags}},
}

// The values that occur.
var (
	sizes   = []int64{1, 1 * kB, 1 * mB, 8 * mB, 32 * mB}
	windows = []int{32, 128, 1024, 4096}
	mtus    = []int{576, 1200, 1400}
)

// TestTransferRows checks that the rows leave out no value, on neither path
// and at neither end.
func TestTransferRows(t *testing.T) {
	seen := make(map[string]bool)
	for _, r := range transferRows {
		seen[fmt.Sprintf("%s size %d", r.path.name, r.size)] = true
		for name, u := range map[string]tuning{"ours": r.ours, "theirs": r.theirs} {
			on := r.path.name + " " + name
			seen[fmt.Sprintf("%s window %d", on, u.window)] = true
			seen[fmt.Sprintf("%s MTU %d", on, u.mtu)] = true
			for _, f := range flagNames {
				seen[fmt.Sprintf("%s %s %v", on, f.name, u.has(f.flag))] = true
			}
		}
	}
	for _, p := range []path{direct, lossy} {
		for _, size := range sizes {
			require.Contains(t, seen, fmt.Sprintf("%s size %d", p.name, size))
		}
		for _, name := range []string{"ours", "theirs"} {
			on := p.name + " " + name
			for _, window := range windows {
				require.Contains(t, seen, fmt.Sprintf("%s window %d", on, window))
			}
			for _, mtu := range mtus {
				require.Contains(t, seen, fmt.Sprintf("%s MTU %d", on, mtu))
			}
			for _, f := range flagNames {
				require.Contains(t, seen, fmt.Sprintf("%s %s true", on, f.name))
				require.Contains(t, seen, fmt.Sprintf("%s %s false", on, f.name))
			}
		}
	}
}

// TestTransfer moves contents both ways at once, for every row with either end
// listening. With -short one end listens in a row, and the other in the next, and
// the largest rows are shorter.
func TestTransfer(t *testing.T) {
	for i, r := range transferRows {
		if testing.Short() {
			r.size = min(r.size, shortSize)
		}
		r.run(t, timeLimit, i)
	}
}

// sideBySide reports whether the row mostly waits, so that others may run at
// the same time. Loopback and the largest sizes need the processors: with too
// many of them at once, queues build up until every segment times out.
func (r row) sideBySide() bool { return r.path.relay && r.size < 8*mB }

// run runs row i as two subtests, or with -short as one of them.
func (r row) run(t *testing.T, limit time.Duration, i int) {
	size := min(r.size, maxSize)
	for _, p := range covering(bothWays(party{ours{}, r.ours}, party{theirs{}, r.theirs}, r.path), i) {
		p.limit = limit
		t.Run(sizeName(r.size)+"/"+p.name(), func(t *testing.T) {
			if r.sideBySide() {
				t.Parallel()
			}
			s := newService(t, p)
			s.dial()
			s.check(s.transfer(size))
			s.close()
		})
	}
}

// TestDefaults has both ends as they are when nobody sets anything: ours in
// stream mode with large windows, kcp-go in message mode with windows of 32
// and a flush every 100 ms.
func TestDefaults(t *testing.T) {
	us := party{ours{untuned: true}, tuning{}}
	them := party{theirs{untuned: true}, tuning{}}
	for path, size := range map[path]int64{direct: 256 * kB, lossy: 32 * kB} {
		for _, p := range bothWays(us, them, path) {
			t.Run(fmt.Sprintf("%s/%v dials", path.name, p.dialler.implementation), func(t *testing.T) {
				t.Parallel()
				s := newService(t, p)
				s.dial()
				s.check(s.transfer(size))
				s.close()
			})
		}
	}
}

func sizeName(n int64) string {
	switch {
	case n >= mB:
		return fmt.Sprintf("%dMB", n/mB)
	case n >= kB:
		return fmt.Sprintf("%dkB", n/kB)
	}
	return fmt.Sprintf("%dB", n)
}
