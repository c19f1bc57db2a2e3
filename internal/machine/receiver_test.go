package machine

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/wire"
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
	h.k.LimitWindow(4, false, false)
	h.input(push(0, 0, "a"))
	require.NotEqual(t, h.k.clock.now, h.k.ackTime())
	h.input(push(1, 0, "b"))
	require.Equal(t, h.k.clock.now, h.k.ackTime(), "half of the share")
	h.advance(0)
	h.want("ack 0 ts=0 una=2 wnd=4")
	h.input(push(2, 0, "c"))
	h.k.LimitWindow(3, false, false)
	require.NotEqual(t, h.k.clock.now, h.k.ackTime())
	h.k.LimitWindow(4, false, false)
	require.NotEqual(t, h.k.clock.now, h.k.ackTime(), "the peer has not used what it had")
	h.k.LimitWindow(2, false, false)
	require.NotEqual(t, h.k.clock.now, h.k.ackTime())
	h.k.LimitWindow(0, false, false)
	require.Equal(t, h.k.clock.now, h.k.ackTime())
	h.advance(0)
	h.want("ack 2 ts=0 una=3 wnd=125")
	h.k.LimitWindow(1, false, false)
	for sn := range uint32(MinRcvWnd) {
		h.input(push(3+sn, 0, "d"))
	}
	require.EqualValues(t, 0, h.k.wndUnused(), "the receive queue is full")
	require.EqualValues(t, MinRcvWnd, h.k.rcv.queue.n, "all that the receive window holds is taken")
	for _, message := range "abcd" {
		h.recv(string(message))
	}
	require.EqualValues(t, 1, h.k.wndUnused())
	h.advance(0)
	h.out = nil
}

// data returns a PUSH with a time stamp.
func data(sn, ts uint32, payload string) []byte { return segment(wire.CmdPush, 0, ts, sn, 0, payload) }

// ACKs that the una beside them covers are left out, but not the newest.
func TestSparseAcks(t *testing.T) {
	for _, sparse := range []bool{false, true} {
		h := newHarness(t, func(k *KCP) { k.SetExtensions(Extensions{SparseAcks: sparse}) })
		h.input(data(0, 11, "a"), data(1, 12, "b"), data(3, 14, "d"), data(2, 13, "c"), data(5, 16, "f"), data(6, 17, "g"), data(0, 11, "a"))
		h.advance(0)
		if sparse {
			h.want("ack 5 ts=16 una=4 wnd=124", "ack 6 ts=17 una=4 wnd=124", "ack 0 ts=11 una=4 wnd=124")
			continue
		}
		h.want("ack 0 ts=11 una=4 wnd=124", "ack 1 ts=12 una=4 wnd=124", "ack 3 ts=14 una=4 wnd=124",
			"ack 2 ts=13 una=4 wnd=124", "ack 5 ts=16 una=4 wnd=124", "ack 6 ts=17 una=4 wnd=124", "ack 0 ts=11 una=4 wnd=124")
	}
}

// What a lent segment is made of stays as it is until it is taken back, also
// where it is acknowledged, and retransmitted, meanwhile.
func TestLentSegments(t *testing.T) {
	var lent []*Segment
	h := newHarness(t, func(k *KCP) {
		k.hooks.Headroom = wire.HeaderSize + 3
		k.hooks.OutputInPlace = func(s *Segment, _ []byte) { lent = append(lent, s) }
		require.NoError(t, k.SetMTU(MinMTU))
	})
	payload := func(b byte) string {
		p := make([]byte, MinMTU-wire.HeaderSize)
		for i := range p {
			p[i] = b
		}
		return string(p)
	}
	h.send("small")
	h.send(payload('a'))
	h.send(payload('b'))
	h.advance(0)
	h.want(`push 0 frg=0 "small"`)
	require.Len(t, lent, 2)
	first := lent[0]
	require.Equal(t, []string{fmt.Sprintf("push 1 frg=0 %q", payload('a'))}, describe(t, first.buf[3:3+MinMTU]))

	h.advance(first.rto) // while it is lent, a copy goes out
	h.want(`push 0 frg=0 "small"`, fmt.Sprintf("push 1 frg=0 %q", payload('a')), fmt.Sprintf("push 2 frg=0 %q", payload('b')))
	require.Len(t, lent, 2)

	h.input(ack(1, h.now, 3)) // which ends its use here
	h.send(payload('c'))
	h.advance(0)
	require.Len(t, lent, 3)
	require.NotSame(t, first, lent[2])
	require.Equal(t, payload('a'), string(first.buf[3+wire.HeaderSize:3+MinMTU]))
	h.k.ReleaseSegment(first)
	h.send(payload('d'))
	h.advance(0)
	require.Same(t, first, lent[3], "it is used again")
	for _, s := range lent[1:] {
		h.k.ReleaseSegment(s)
	}
	h.input(ack(3, h.now, 5))
}

// A sink takes what is next in order as long as it fits, and nothing else.
func TestReadInto(t *testing.T) {
	h := newHarness(t, nil)
	buf := make([]byte, 7)
	h.k.rcv.readInto = buf
	h.input(data(1, 1, "cd"))
	require.False(t, h.k.rcv.readDirect)
	h.input(data(0, 1, "ab"))
	require.True(t, h.k.rcv.readDirect)
	require.Equal(t, "ab", string(buf[:len(buf)-len(h.k.rcv.readInto)]), "what came early has its place in the queue")
	h.input(data(2, 1, "ef"))
	require.Len(t, h.k.rcv.readInto, 5)
	h.input(data(0, 1, "ab"))
	require.Len(t, h.k.rcv.readInto, 5)
	h.k.rcv.readInto = nil
	rest := make([]byte, 10)
	require.Equal(t, "cdef", string(rest[:h.k.RecvBytes(rest)]))

	h.k.rcv.readInto = buf[:2]
	h.input(data(3, 1, "too long"))
	require.Len(t, h.k.rcv.readInto, 2)
	require.Equal(t, "too long", string(rest[:h.k.RecvBytes(rest)]))
	h.k.Flush()
	h.out = nil
}

// While nothing comes from the peer, only the oldest of many segments is sent
// again and again. When packets of the peer arrive again, the others are retransmitted.
func TestSilenceIsNotFilled(t *testing.T) {
	sent := map[uint32]int{}
	k := New(7, func(packet []byte) {
		for len(packet) > 0 {
			h := wire.DecodeHeader(packet)
			sent[uint32(h.SN)]++
			packet = packet[wire.HeaderSize+int(h.Len):]
		}
	})
	asSession(k, congestion.NewNone())
	now := uint32(1000)
	k.SetClock(now)
	for range 20 {
		_, err := k.Send(make([]byte, k.cfg.mss))
		require.NoError(t, err)
	}
	advance := func(ms int) {
		for range ms {
			now++
			k.SetClock(now)
			if at, ok := k.NextFlush(); ok && !Seq(at).After(Seq(now)) {
				k.Flush()
			}
		}
	}
	k.Flush()
	advance(1500)
	require.True(t, k.snd.recovery.Outage.On)
	clear(sent)
	advance(4000)
	require.NotZero(t, sent[0])
	require.Len(t, sent, 1, "others than the oldest are retransmitted in silence: %v", sent)

	for sn := range uint32(4) {
		require.NoError(t, k.Input(ack(sn, now, sn+1)))
		advance(50)
	}
	require.Greater(t, len(sent), 15, "what was in flight is retransmitted: %v", sent)
}
