package machine

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/arqnet/kcp/internal/wire"
	"github.com/stretchr/testify/require"
)

// Tests of the state machine as a whole: circumstances in which KCP libraries have
// failed their users.

// A PUSH without data in front of data used to wedge the reader.
func TestEmptyPush(t *testing.T) {
	h := newHarness(t, nil)
	h.input(push(0, 0, ""), push(1, 0, "abc"))
	h.advance(0)
	h.want("ack 0 ts=0 una=2 wnd=126", "ack 1 ts=0 una=2 wnd=126")
	require.Equal(t, 0, h.k.PeekSize())
	h.recv("")
	h.recv("abc")

	h.input(push(2, 0, ""), push(3, 0, ""), push(4, 0, "xyz"))
	h.advance(0)
	h.want("ack 2 ts=0 una=5 wnd=125", "ack 3 ts=0 una=5 wnd=125", "ack 4 ts=0 una=5 wnd=125")
	buf := make([]byte, 10)
	require.Equal(t, "xyz", string(buf[:h.k.RecvBytes(buf)]))
}

// A una beyond what was sent used to throw away all unacknowledged data.
func TestForgedUna(t *testing.T) {
	h := newHarness(t, nil)
	h.send("one")
	h.advance(0)
	h.want(`push 0 frg=0 "one"`)
	for _, una := range []uint32{2, 1000, 0x7fffffff, 0x80000000, 0x80000001} {
		require.ErrorIs(t, h.k.Input(segment(wire.CmdWins, 0, 0, 0, una, "")), ErrForgedUna)
		require.ErrorIs(t, h.k.Input(ack(0, 1000, una)), ErrForgedUna)
	}
	require.Equal(t, 1, h.k.WaitSend())
	h.advance(300)
	h.want(`push 0 frg=0 "one"`)
	h.input(ack(0, h.now, 1))
	require.Zero(t, h.k.WaitSend())
}

// A message of more fragments than the window, as kcp-go sends them, passes.
func TestLongMessage(t *testing.T) {
	h := newHarness(t, nil)
	want := ""
	for i := range uint32(200) {
		s := string(rune('a' + i%26))
		want += s
		h.input(push(i, uint8(199-i), s))
	}
	h.recv(want)
	h.advance(0)
	h.out = nil
}

// A message that the peer could never hold is an error at the sender.
func TestSenderRefuses(t *testing.T) {
	h := newHarness(t, func(k *KCP) { k.SetExtensions(Extensions{LimitToPeerWindow: true}) })
	big := make([]byte, 127*h.k.cfg.mss)
	_, err := h.k.Send(append(big, 1))
	require.ErrorIs(t, err, ErrMessageTooLarge)
	require.Zero(t, h.k.WaitSend())

	p := segment(wire.CmdWins, 0, 0, 0, 0, "")
	binary.LittleEndian.PutUint16(p[6:], 32)
	h.input(p)
	_, err = h.k.Send(make([]byte, 32*h.k.cfg.mss+1))
	require.ErrorIs(t, err, ErrMessageTooLarge)
	require.Zero(t, h.k.WaitSend())
	_, err = h.k.Send(make([]byte, 32*h.k.cfg.mss))
	require.NoError(t, err)
	h.advance(0)
	require.Len(t, h.out, 32)
	h.out = nil
}

// A window of 65536 used to be advertised as 0.
func TestWindowAboveWire(t *testing.T) {
	for window, want := range map[int]string{65535: "65535", 65536: "65535", 100000: "65535", 65534: "65534"} {
		h := newHarness(t, func(k *KCP) { require.NoError(t, k.SetWindow(32, window)) })
		h.input(segment(wire.CmdWask, 0, 0, 0, 0, ""))
		h.advance(0)
		h.want("wins una=0 wnd=" + want)
	}
}

// A segment that timed out is not fast-retransmitted for the same loss.
func TestNoDoubleRepair(t *testing.T) {
	for _, fresh := range []bool{false, true} {
		h := newHarness(t, func(k *KCP) {
			k.SetFastResend(2)
			k.SetExtensions(Extensions{FreshFastAck: fresh})
		})
		h.send("lost")
		h.send("b")
		h.send("c")
		h.advance(0)
		h.out = nil
		// Both acknowledgements arrive, and with the same flush the time-out.
		h.now += 200
		h.k.SetClock(h.now)
		h.input(ack(1, 1000, 0))
		h.input(ack(2, 1000, 0))
		h.advance(0)
		h.want(`push 0 frg=0 "lost"`)
		h.advance(1)
		if fresh {
			h.want()
		} else {
			h.want(`push 0 frg=0 "lost"`) // the reference does it again
		}
	}
}

// Round trips are not measured on packets that error correction brought late.
func TestRecoveredPackets(t *testing.T) {
	h := newHarness(t, nil)
	h.send("x")
	h.send("y")
	h.advance(0)
	h.out = nil
	h.now += 400
	h.k.SetClock(h.now)
	require.NoError(t, h.k.InputRecovered(ack(0, 1000, 1)))
	require.Zero(t, h.k.snd.rtt.srtt, "a late ACK is no sample")
	require.Equal(t, 1, h.k.WaitSend(), "but it acknowledges")
	h.input(ack(1, 1000, 2))
	require.Equal(t, int32(400), h.k.snd.rtt.srtt)

	// A segment recovered late is acknowledged with the ts of the newest
	// packet that came by itself: the peer measures the path.
	h.input(segment(wire.CmdPush, 0, 5000, 1, 2, "b"))
	require.NoError(t, h.k.InputRecovered(segment(wire.CmdPush, 0, 4000, 0, 2, "a")))
	h.advance(0)
	h.want("ack 1 ts=5000 una=2 wnd=126", "ack 0 ts=5000 una=2 wnd=126")
	h.recv("a")
	h.recv("b")
}

// What came before a rest of weeks is not newer than what comes after it, though half
// of the clock's circle has passed (RFC 7323 §5.5).
func TestTimestampsAfterARest(t *testing.T) {
	h := newHarness(t, nil)
	h.input(segment(wire.CmdPush, 0, 5000, 0, 0, "a"))
	h.advance(0)
	h.want("ack 0 ts=5000 una=1 wnd=127")
	h.recv("a")
	h.k.Compact()
	h.now += 1 << 31
	h.k.SetClock(h.now)
	const ts = 5000 + 1<<31 + 10
	require.NoError(t, h.k.InputRecovered(segment(wire.CmdPush, 0, ts, 1, 0, "b")))
	h.advance(0)
	h.want(fmt.Sprintf("ack 1 ts=%d una=2 wnd=127", uint32(ts)))
	h.recv("b")
}

// After a flush nothing is due at once: a driver that waits for NextFlush
// cannot spin. (Check can name a time at which Update does not flush yet, which
// the recordings of the reference hold us to; sessions do not use it.)
func TestNextFlushCannotSpin(t *testing.T) {
	for seed := range fewer(50) {
		random := rand.New(rand.NewPCG(20, seed))
		p := newPipe(t, 64, 0.2)
		if seed%2 == 0 {
			p.a.SetCongestionControl(nil)
		}
		p.now = random.Uint32()
		idle := 0
		for range 500 {
			if random.IntN(3) == 0 {
				_, _ = p.a.Send(make([]byte, random.IntN(3000)))
			}
			p.a.SetClock(p.now)
			p.a.Flush()
			next, ok := p.a.NextFlush()
			// A flush may itself open the window, or leave a segment suspect.
			for again := 0; ok && next == p.now && again < 3; again++ {
				p.a.Flush()
				next, ok = p.a.NextFlush()
			}
			if !ok {
				idle++
				next = p.now + 5
			}
			require.Positive(t, Seq(next).Diff(Seq(p.now)), "seed %d", seed)
			p.now = next
			p.b.SetClock(p.now)
			p.deliver(&p.toB, p.b, 0)
			p.b.Flush()
			p.deliver(&p.toA, p.a, 0)
			for p.b.PeekSize() >= 0 {
				_, err := p.b.Recv(make([]byte, 1<<16))
				require.NoError(t, err)
			}
		}
		require.Positive(t, idle, "an idle machine wants no flush")
	}
}

// In stream mode Send takes all of p, or what the last waiting segment has room for if
// the rest needs more than 127 segments, or nothing if that has no room. The calls of
// ikcp_send return the same, with -2 for ErrMessageTooLarge.
func TestSendOfStream(t *testing.T) {
	p := newPipe(t, 256, 0)
	p.a.SetStream(true)
	mss := p.a.cfg.mss
	data := content(3, 382*mss)
	sent := 0
	for _, call := range []struct{ size, taken, waiting int }{
		{127*mss + 1, 0, 0}, // nothing to fill up
		{128 * mss, 0, 0},
		{len(data), 0, 0},
		{0, 0, 0},
		{127 * mss, 127 * mss, 127},
		{128 * mss, 0, 127}, // the last segment is full
		{7, 7, 128},
		{0, 0, 128},
		{mss + 127*mss, mss - 7, 128}, // it has room, and the rest is too long
		{127*mss + 1, 0, 128},         // it has none again
		{1, 1, 129},
		{mss - 1 + 127*mss, mss - 1 + 127*mss, 256}, // all of it, though more than 127 segments
		{1, 1, 257},
		{mss, mss, 258},
	} {
		n, err := p.a.Send(data[sent : sent+call.size])
		if call.taken == 0 && call.size > 0 {
			require.ErrorIs(t, err, ErrMessageTooLarge, "%+v", call)
		} else {
			require.NoError(t, err, "%+v", call)
		}
		require.Equal(t, call.taken, n, "%+v", call)
		require.Equal(t, call.waiting, p.a.WaitSend(), "%+v", call)
		sent += n
	}
	var got []byte
	buf := make([]byte, mss)
	for len(got) < sent {
		p.turn()
		for n, err := p.b.Recv(buf); err == nil; n, err = p.b.Recv(buf) {
			got = append(got, buf[:n]...)
		}
	}
	require.Equal(t, data[:sent], got)
}

// A steady flow allocates nothing, with losses as well.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	sequential(t)
	if !alone(t) {
		return
	}
	for _, loss := range []float64{0, 0.05} {
		p := newPipe(t, 256, loss)
		payload, buf := make([]byte, p.a.cfg.mss), make([]byte, p.a.cfg.mss)
		p.run(20000, payload, buf)
		allocs := testing.AllocsPerRun(10, func() { p.run(1000, payload, buf) })
		require.Less(t, allocs, 1.0, "allocations in 1000 segments, loss %v", loss)
	}
}

// An idle state machine is small, and what a transfer needed is given back.
func TestIdleIsSmall(t *testing.T) {
	p := newPipe(t, 1024, 0)
	p.run(5000, make([]byte, p.a.cfg.mss), make([]byte, p.a.cfg.mss))
	p.now += p.delay
	p.turn()
	for _, k := range []*KCP{p.a, p.b} {
		k.Compact()
		require.Zero(t, k.snd.ring.Len())
		require.Zero(t, k.rcv.ring.Len())
		require.Nil(t, k.rcv.acks)
		require.Nil(t, k.out.packet)
		require.Nil(t, k.out.scratch)
		require.Equal(t, Buffers{}, k.out.buffers)
		require.Nil(t, k.snd.timeouts.first)
	}
	p.run(5000, make([]byte, p.a.cfg.mss), make([]byte, p.a.cfg.mss)) // and works again
}

// With StrictRTT, only an acknowledgement of something in flight is a sample.
func TestStrictRTT(t *testing.T) {
	for _, strict := range []bool{false, true} {
		h := newHarness(t, func(k *KCP) { k.SetExtensions(Extensions{StrictRTT: strict}) })
		h.send("a")
		h.send("b")
		h.send("c")
		h.advance(0)
		h.out = nil
		h.now += 50
		h.k.SetClock(h.now)
		h.input(ack(0, 1000, 2), ack(1, 1000, 2)) // una has covered both
		require.Equal(t, int32(50), h.k.snd.rtt.srtt)
		h.input(ack(2, 1000, 2)) // by its sn
		require.Equal(t, int32(50), h.k.snd.rtt.srtt)
		h.now += 10000
		h.k.SetClock(h.now)
		h.input(ack(0, 1000, 3)) // again
		h.input(ack(77, 1000, 3))
		if strict {
			require.Equal(t, int32(50), h.k.snd.rtt.srtt)
		} else {
			require.Greater(t, h.k.snd.rtt.srtt, int32(1000))
		}
	}
}

// MaxRTO bounds the back-off of a segment; without it there is none but the
// range in which times compare.
func TestBackoffIsBounded(t *testing.T) {
	for _, limit := range []uint32{0, 5000} {
		for _, mode := range []NoDelay{NoDelayOff, NoDelayOn, NoDelayTurbo} {
			h := newHarness(t, func(k *KCP) {
				k.SetNoDelay(mode)
				k.SetExtensions(Extensions{MaxRTO: limit})
			})
			h.send("x")
			h.advance(0)
			h.want(`push 0 frg=0 "x"`)
			var last uint32
			for range 60 {
				at, ok := h.k.NextFlush()
				require.True(t, ok)
				wait := at - h.now
				require.GreaterOrEqual(t, wait, last/2)
				if limit > 0 {
					require.LessOrEqual(t, wait, limit)
				}
				require.LessOrEqual(t, wait, uint32(wireMaxRTO))
				last = wait
				h.advance(wait)
				h.want(`push 0 frg=0 "x"`)
			}
			if mode != NoDelayTurbo && limit > 0 {
				require.Equal(t, limit, last)
			}
		}
	}
}

// With FreshWindow, a packet that was overtaken does not turn the window back.
func TestFreshWindow(t *testing.T) {
	for _, fresh := range []bool{false, true} {
		h := newHarness(t, func(k *KCP) { k.SetExtensions(Extensions{FreshWindow: fresh}) })
		for range 4 {
			h.send("x")
		}
		h.advance(0)
		h.out = nil
		window := func(una uint32, wnd uint16) []byte {
			p := segment(wire.CmdWins, 0, 0, 0, una, "")
			binary.LittleEndian.PutUint16(p[6:], wnd)
			return p
		}
		h.input(window(0, 7))
		require.Equal(t, uint32(7), h.k.peer.wnd)
		h.input(window(3, 50))
		h.input(window(1, 0))
		if fresh {
			require.Equal(t, uint32(50), h.k.peer.wnd)
		} else {
			require.Equal(t, uint32(0), h.k.peer.wnd)
		}
		h.input(window(3, 40))
		require.Equal(t, uint32(40), h.k.peer.wnd)
		h.input(window(4, 0))
		require.Equal(t, uint32(0), h.k.peer.wnd)
		h.input(ack(0, h.now, 4))
	}
}
