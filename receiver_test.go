package kcp

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// A broken message leaves what stands before it in its place: to move that
// would cost as much as the queue is long, for each packet of a few bytes.
func TestBrokenMessageMovesNothing(t *testing.T) {
	h := newHarness(t, func(k *KCP) { require.NoError(t, k.SetWindow(32, 4096)) })
	h.input(push(0, 0, "first"))
	for sn := uint32(1); sn < 4000; sn++ {
		h.input(push(sn, uint8(2+sn%2*4), "x"))
		require.Equal(t, "first", string(h.k.rcv.queue.at(0).data))
	}
	require.EqualValues(t, 3998, h.k.Counters().BrokenMessages)
	require.Equal(t, 2*128, h.k.rcv.held, "broken data is held")
	h.recv("first")
	require.EqualValues(t, 1, h.k.rcv.queue.n)
	h.advance(0)
	h.out = nil
}

// Whatever the fragments are numbered, in whatever order they come and whenever
// the application reads: it gets exactly the messages that count down to 0, and
// the window neither jams nor grows.
func TestBrokenMessagesRandom(t *testing.T) {
	t.Parallel()
	for seed := range fewer(30) {
		r := rand.New(rand.NewPCG(seed, 4))
		k := New(7, func([]byte) {})
		k.SetClock(0)
		var frgs []uint8
		for len(frgs) < 2000 {
			n := 1 + r.IntN(1+r.IntN(20))
			for i := range n {
				frg := uint8(n - 1 - i)
				if r.IntN(30) == 0 {
					frg = uint8(n + r.IntN(8))
				}
				frgs = append(frgs, frg)
			}
		}
		want := wholeMessages(frgs)
		var got []string
		read := func() {
			buf := make([]byte, 1000)
			for {
				n, err := k.Recv(buf)
				if err != nil {
					return
				}
				got = append(got, string(buf[:n]))
			}
		}
		for stuck := 0; int(k.rcv.nxt) < len(frgs); stuck++ {
			require.Less(t, stuck, 100*len(frgs), "seed %d: jammed at %d", seed, k.rcv.nxt)
			sn := int(k.rcv.nxt) + r.IntN(1+r.IntN(60))
			if sn < len(frgs) {
				require.NoError(t, k.Input(push(uint32(sn), frgs[sn], string(rune('a'+sn%26)))))
			}
			if r.IntN(200) == 0 {
				requireBooks(t, k)
				read()
				requireBooks(t, k)
			}
			if k.wndUnused() == 0 {
				read()
				require.NotZero(t, k.wndUnused(), "seed %d: everything is read and the window is shut", seed)
			}
		}
		read()
		require.Equal(t, want, got, "seed %d", seed)
		require.Equal(t, k.rcv.partial, k.rcv.queue.n, "seed %d", seed)
	}
}

// wholeMessages returns the messages among fragments, of which segment sn holds
// the letter sn%26.
func wholeMessages(frgs []uint8) (messages []string) {
	message, next := "", -1
	for sn, frg := range frgs {
		if next >= 0 && int(frg) != next {
			message = ""
		}
		message += string(rune('a' + sn%26))
		next = int(frg) - 1
		if frg == 0 {
			messages = append(messages, message)
			message = ""
		}
	}
	return messages
}

// The share bounds what is advertised, not what is taken, and does not close the
// window. ACKs leave at once when it is half used, and when it grows for a peer that has
// used half.
func TestShareOfWindow(t *testing.T) {
	h := newHarness(t, func(k *KCP) { k.SetExtensions(Extensions{ThinAcks: true}) })
	h.k.limitWindow(4, false, false)
	h.input(push(0, 0, "a"))
	require.NotEqual(t, h.k.clock.now, h.k.ackTime())
	h.input(push(1, 0, "b"))
	require.Equal(t, h.k.clock.now, h.k.ackTime(), "half of the share")
	h.advance(0)
	h.want("ack 0 ts=0 una=2 wnd=4")
	h.input(push(2, 0, "c"))
	h.k.limitWindow(3, false, false)
	require.NotEqual(t, h.k.clock.now, h.k.ackTime())
	h.k.limitWindow(4, false, false)
	require.NotEqual(t, h.k.clock.now, h.k.ackTime(), "the peer has not used what it had")
	h.k.limitWindow(2, false, false)
	require.NotEqual(t, h.k.clock.now, h.k.ackTime())
	h.k.limitWindow(0, false, false)
	require.Equal(t, h.k.clock.now, h.k.ackTime())
	h.advance(0)
	h.want("ack 2 ts=0 una=3 wnd=125")
	h.k.limitWindow(1, false, false)
	for sn := range uint32(minRcvWnd) {
		h.input(push(3+sn, 0, "d"))
	}
	require.EqualValues(t, 0, h.k.wndUnused(), "the receive queue is full")
	require.EqualValues(t, minRcvWnd, h.k.rcv.queue.n, "all that the receive window holds is taken")
	for _, message := range "abcd" {
		h.recv(string(message))
	}
	require.EqualValues(t, 1, h.k.wndUnused())
	h.advance(0)
	h.out = nil
}
