package machine

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/stretchr/testify/require"
)

// What is sent again without content drops its message, whatever of it arrives, and
// in which order, and no other.
func TestAbandonedSegments(t *testing.T) {
	type part struct {
		frg  uint8
		text string // "": abandoned
	}
	for _, tc := range []struct {
		parts []part
		want  []string
	}{
		{[]part{{0, ""}, {0, "b"}}, []string{"b"}},
		{[]part{{0, "a"}, {0, ""}, {0, "c"}}, []string{"a", "c"}},
		{[]part{{1, ""}, {0, "a"}, {0, "b"}}, []string{"b"}},                      // the rest has arrived
		{[]part{{1, "a"}, {0, ""}, {0, "b"}}, []string{"b"}},                      // the beginning has
		{[]part{{2, "a"}, {1, ""}, {0, "c"}, {1, "d"}, {0, "e"}}, []string{"de"}}, // in the middle
		{[]part{{9, "a"}, {0, ""}, {1, "b"}, {0, "c"}}, []string{"bc"}},           // the rest was not sent
		{[]part{{9, ""}, {0, ""}, {8, "b"}}, nil},
		{[]part{{9, ""}, {0, "b"}, {8, ""}, {7, "c"}, {0, "d"}}, []string{"b", "d"}}, // from a bad peer
		{[]part{{0, "a"}, {255, ""}, {254, "b"}, {0, "c"}}, []string{"a", "c"}},
	} {
		for i := range fewer(24) {
			k := New(1, func([]byte) {})
			require.NoError(t, k.SetWindow(32, 32))
			newTestHost(t, k)
			order := rand.Perm(len(tc.parts))
			if i < 2 {
				slices.Sort(order)
			}
			direct := make([]byte, 16)
			if i%2 == 1 {
				k.Receiver().LendBuffer(direct)
			}
			for _, sn := range order {
				input := func() {
					p := tc.parts[sn]
					h := wire.Header{Conv: 1, Cmd: wire.CmdPush, Frg: p.frg, Wnd: 32, SN: Seq(sn), Len: uint32(len(p.text))}
					payload := []byte(p.text)
					if p.text == "" {
						payload = (&streams.Header{Kind: streams.Abandon}).Append(nil)
						h.Cmd, h.Len = wire.CmdStream, uint32(len(payload))
					}
					b := make([]byte, wire.HeaderSize+len(payload))
					h.Encode(b)
					copy(b[wire.HeaderSize:], payload)
					require.NoError(t, k.Input(b))
					requireBooks(t, k)
				}
				input()
				input() // a duplicate
			}
			var got []string
			if i%2 == 1 {
				n := len(direct) - k.Receiver().TakeBuffer()
				n += k.RecvBytes(direct[n:])
				require.Equal(t, strings.Join(tc.want, ""), string(direct[:n]), "%v in the order %v", tc.parts, order)
				continue
			}
			for k.PeekSize() >= 0 {
				p := make([]byte, k.PeekSize())
				n, err := k.Recv(p)
				require.NoError(t, err)
				got = append(got, string(p[:n]))
			}
			require.Equal(t, tc.want, got, "%v in the order %v", tc.parts, order)
			require.EqualValues(t, len(tc.parts), k.rcv.nxt)
			require.EqualValues(t, len(tc.parts), k.counters.Duplicates)
		}
	}
}

// A sender that always has something to send and whose messages are too old before
// they can leave: what is taken out of the queue leaves no room behind, and those
// that are not too old keep their order.
func TestQueueOfSpentMessages(t *testing.T) {
	sequential(t)
	k := New(1, func([]byte) {})
	k.SetExtensions(Extensions{PipeWindow: true})
	h := newTestHost(t, k)
	now := uint32(1)
	k.SetClock(now)
	fed := 0
	for range 2000 {
		for range 3 {
			fed++
			tag := &streams.Tag{Deadline: int64(now+5) * 1000}
			require.NoError(t, k.SendMessage(make([]byte, fed%4*1000), tag))
		}
		now++
		k.SetClock(now)
		k.Flush()
		for k.DropSpent() {
		}
		require.LessOrEqual(t, k.snd.ring.Len(), 512)
		h.check()
		requireBooks(t, k)
	}
	last := int64(0)
	for s := k.snd.queue.head; s != nil; s = s.order.next {
		if tag := s.tag; tag != nil && tag.OfSession && !tag.Begun {
			require.GreaterOrEqual(t, tag.Deadline, last)
			last = tag.Deadline
			require.Greater(t, last, int64(now)*1000)
		}
	}
	require.NotZero(t, last)
}
