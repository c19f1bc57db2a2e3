package kcp

import (
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What SendMessage refuses, and that it needs message mode.
func TestSendMessageErrors(t *testing.T) {
	inWorld(t, 5, clean, func(w *world) {
		a, b, _ := w.pair(&Config{MessageMode: true}, nil)
		never := func(error) { t.Error("a receipt for what was refused") }
		for _, o := range []MessageOptions{{Lifetime: -1}, {Lifetime: 50 * 24 * time.Hour}, {MaxRetransmits: 65535}} {
			o.Done = never
			require.ErrorIs(t, a.SendMessage(nil, &o), errStreamOptions)
		}
		require.ErrorIs(t, a.SendMessage(make([]byte, a.MaxMessageSize()+1), &MessageOptions{Done: never}), ErrMessageTooLarge)
		require.ErrorIs(t, b.SendMessage(nil, &MessageOptions{Done: never}), ErrNotMessageMode)
		require.ErrorIs(t, b.SendMessage(nil, nil), ErrNotMessageMode)
		require.NoError(t, a.SendMessage([]byte("x"), nil))
		require.NoError(t, a.SendMessage(nil, &MessageOptions{}))
		receive(t, b, []byte("x"))
		n, err := b.ReadMessage(nil)
		require.NoError(t, err)
		require.Zero(t, n)
		require.NoError(t, a.Close())
		require.ErrorIs(t, a.SendMessage(nil, &MessageOptions{Done: never}), net.ErrClosed)
		require.NoError(t, b.Close())
	})
}

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
				k.lendReadBuffer(direct)
			}
			for _, sn := range order {
				input := func() {
					p := tc.parts[sn]
					h := header{conv: 1, cmd: cmdPush, frg: p.frg, wnd: 32, sn: seq(sn), len: uint32(len(p.text))}
					payload := []byte(p.text)
					if p.text == "" {
						payload = (&streamHeader{kind: streamAbandon}).append(nil)
						h.cmd, h.len = cmdStream, uint32(len(payload))
					}
					b := make([]byte, headerSize+len(payload))
					h.encode(b)
					copy(b[headerSize:], payload)
					require.NoError(t, k.Input(b))
					books, err := k.recount()
					require.NoError(t, err)
					require.Equal(t, k.books(), books)
				}
				input()
				input() // a duplicate
			}
			var got []string
			if i%2 == 1 {
				n := len(direct) - k.takeReadBuffer()
				n += k.recvBytes(direct[n:])
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
			require.Zero(t, k.rcv.void)
		}
	}
}

// An abandoned segment outside the window is dropped, as is one of another stream,
// or of another form, for the session itself; and one at an end that takes no
// streams.
func TestBadAbandonedSegments(t *testing.T) {
	abandon := (&streamHeader{kind: streamAbandon}).append(nil)
	for _, v := range []struct {
		name    string
		payload []byte
		sn      seq // beyond rcv_nxt
		streams int
		want    Drops
		beyond  uint64 // counted as out of the window
	}{
		{name: "as it must be", payload: abandon},
		{name: "outside the window", payload: abandon, sn: 1 << 31, beyond: 1},
		{name: "behind the window", payload: abandon, sn: maxWindow, beyond: 1},
		{name: "too long", payload: append(slices.Clone(abandon), 0), want: Drops{Stream: 1}},
		{name: "too short", payload: abandon[:10], want: Drops{Stream: 1}},
		{name: "with bit 3", payload: (&streamHeader{kind: streamAbandon, end: true}).append(nil), want: Drops{Stream: 1}},
		{name: "DATA", payload: append((&streamHeader{kind: streamData, end: true}).append(nil), 0, 0), want: Drops{Stream: 1}},
		{name: "no streams here", payload: abandon, streams: -1, want: Drops{Command: 1}},
	} {
		inWorld(t, 7, clean, func(w *world) {
			a, b, _ := w.pair(&Config{MessageMode: true}, &Config{MaxStreams: v.streams})
			require.NoError(t, a.WriteMessage([]byte("before")))
			receive(t, b, []byte("before"))
			b.mu.Lock()
			h := header{conv: b.Conv(), cmd: cmdStream, wnd: 100, sn: b.kcp.rcv.nxt + v.sn, una: b.kcp.snd.una, len: uint32(len(v.payload))}
			p := make([]byte, headerSize+len(v.payload))
			h.encode(p)
			copy(p[headerSize:], v.payload)
			before := b.kcp.counters.OutOfWindow
			b.packetDone(b.kcp.Input(p), len(p), b.ep.now())
			require.Equal(t, v.beyond, b.kcp.counters.OutOfWindow-before, v.name)
			moved := b.kcp.rcv.nxt == h.sn+1
			b.mu.Unlock()
			require.Equal(t, v.want, b.Stats().Dropped, v.name)
			require.Equal(t, v.beyond == 0 && v.want.Command == 0, moved, v.name)
			if moved { // the sender would find that out as if it had sent it
				_ = a.Abort()
				return
			}
			require.NoError(t, a.WriteMessage([]byte("after")))
			receive(t, b, []byte("after"))
			require.NoError(t, a.Close())
		})
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
			tag := &streamTag{deadline: int64(now+5) * 1000}
			require.NoError(t, k.sendMessage(make([]byte, fed%4*1000), tag))
		}
		now++
		k.SetClock(now)
		k.Flush()
		for k.dropSpent() {
		}
		require.LessOrEqual(t, len(k.snd.ring.slots), 512)
		h.check()
		b, err := k.recount()
		require.NoError(t, err)
		require.Equal(t, k.books(), b)
	}
	last := int64(0)
	k.messages(func(tag *streamTag) {
		if !tag.begun {
			require.GreaterOrEqual(t, tag.deadline, last)
			last = tag.deadline
			require.Greater(t, last, int64(now)*1000)
		}
	})
	require.NotZero(t, last)
}
