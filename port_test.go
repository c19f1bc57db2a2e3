package kcp

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/congestion"
)

// data returns a PUSH with a time stamp.
func data(sn, ts uint32, payload string) []byte { return segment(cmdPush, 0, ts, sn, 0, payload) }

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
	var lent []*sendSegment
	h := newHarness(t, func(k *KCP) {
		k.hooks.headroom = headerSize + 3
		k.hooks.outputInPlace = func(s *sendSegment, _ []byte) { lent = append(lent, s) }
		require.NoError(t, k.SetMTU(minMTU))
	})
	payload := func(b byte) string {
		p := make([]byte, minMTU-headerSize)
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
	require.Equal(t, []string{fmt.Sprintf("push 1 frg=0 %q", payload('a'))}, describe(t, first.buf[3:3+minMTU]))

	h.advance(first.rto) // while it is lent, a copy goes out
	h.want(`push 0 frg=0 "small"`, fmt.Sprintf("push 1 frg=0 %q", payload('a')), fmt.Sprintf("push 2 frg=0 %q", payload('b')))
	require.Len(t, lent, 2)

	h.input(ack(1, h.now, 3)) // which ends its use here
	h.send(payload('c'))
	h.advance(0)
	require.Len(t, lent, 3)
	require.NotSame(t, first, lent[2])
	require.Equal(t, payload('a'), string(first.buf[3+headerSize:3+minMTU]))
	h.k.releaseSegment(first)
	h.send(payload('d'))
	h.advance(0)
	require.Same(t, first, lent[3], "it is used again")
	for _, s := range lent[1:] {
		h.k.releaseSegment(s)
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
	require.Equal(t, "cdef", string(rest[:h.k.recvBytes(rest)]))

	h.k.rcv.readInto = buf[:2]
	h.input(data(3, 1, "too long"))
	require.Len(t, h.k.rcv.readInto, 2)
	require.Equal(t, "too long", string(rest[:h.k.recvBytes(rest)]))
	h.k.Flush()
	h.out = nil
}

// While nothing comes from the peer, only the oldest of many segments is sent
// again and again. The first packet of the peer causes the others to be
// retransmitted.
func TestSilenceIsNotFilled(t *testing.T) {
	sent := map[uint32]int{}
	k := New(7, func(packet []byte) {
		for len(packet) > 0 {
			h := decodeHeader(packet)
			sent[uint32(h.sn)]++
			packet = packet[headerSize+int(h.len):]
		}
	})
	config := (*Config)(nil).withDefaults()
	config.CongestionControl = congestion.NewNone
	config.apply(k)
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
			if at, ok := k.NextFlush(); ok && !seq(at).After(seq(now)) {
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

	require.NoError(t, k.Input(ack(0, now, 1)))
	advance(200)
	require.Greater(t, len(sent), 15, "what was in flight is retransmitted: %v", sent)
}

// Datagrams that nobody is going to receive are not held, nor counted.
func TestDatagramsOfAClosedSession(t *testing.T) {
	inWorld(t, 3, clean, func(t *testing.T, w *world) {
		a, b, l := w.pair(nil, nil)
		for range 5 {
			require.NoError(t, a.SendDatagram(make([]byte, 1000)))
		}
		time.Sleep(time.Second)
		require.Greater(t, l.Stats().Buffered, 5000)
		require.NoError(t, b.Close())
		require.NoError(t, a.Close())
		time.Sleep(time.Second)
		require.Zero(t, l.Stats().Buffered)
	})
}
