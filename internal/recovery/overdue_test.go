package recovery

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/container"
)

// peerPath is the path to a peer whose clock differs. The delays of its directions, in
// milliseconds, may change.
type peerPath struct {
	o         Overdue
	offset    container.Serial
	out, back int32
}

// data is data of the peer that arrives now. It covers a segment that was sent when it
// had just arrived.
func (p *peerPath) data(now container.Serial) {
	left := now - container.Serial(p.back)
	p.o.Arrived(now, left+p.offset)
	p.o.Covered(left - container.Serial(p.out))
}

// A segment is lost that left 5 ms earlier than the latest data of the peer would
// acknowledge, wherever the clocks stand. How long that was in a queue makes no
// difference.
func TestOverdue(t *testing.T) {
	for _, offset := range []container.Serial{0, 1 << 31, 1<<32 - 90, 12345} {
		p := peerPath{offset: offset, out: 40, back: 40}
		now := container.Serial(1<<32 - 500) // the clock comes around
		_, ok := p.o.Before(now, 80)
		require.False(t, ok, "nothing is known")
		for range 100 {
			p.data(now)
			now += 10
		}
		for _, queue := range []int32{0, 7, 100, 1000, 3} {
			p.back = 40 + queue
			p.o.Arrived(now, now-container.Serial(p.back)+offset)
			before, ok := p.o.Before(now, 80)
			require.True(t, ok)
			require.Equal(t, 80+queue+overdueMargin, now.Diff(before), "queue of %d ms", queue)
			_, ok = p.o.Before(now+1, 80)
			require.False(t, ok, "nothing has arrived since")
			now += 10
		}
	}
}

// No segment counts as lost before the least round trip and 5 ms, whatever times the peer
// claims.
func TestOverdueOfLiar(t *testing.T) {
	p := peerPath{out: 40, back: 40}
	random := rand.New(rand.NewPCG(1, 2))
	for now := container.Serial(0); now < 10000; now += 10 {
		p.data(now)
		p.o.Arrived(now, container.Serial(random.Uint32()))
		before, _ := p.o.Before(now, 80)
		require.GreaterOrEqual(t, now.Diff(before), int32(80+overdueMargin))
	}
}
