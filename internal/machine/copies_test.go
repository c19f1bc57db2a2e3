package machine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/wire"
)

// carriesCopies reports whether a segment with such a header may carry copies.
func carriesCopies(h *wire.Header) bool {
	if h.Cmd == wire.CmdAck {
		return h.Len > 0
	}
	return h.Frg&recovery.CopiesFlag != 0 && (h.Cmd == wire.CmdPush || h.Cmd == wire.CmdStream)
}

// copiesIn returns the segments of a packet, without its copies, and the copies.
func copiesIn(t *testing.T, packet []byte) (plain []byte, carried []recovery.Copy) {
	for len(packet) > 0 {
		h := wire.DecodeHeader(packet)
		payload, ok := h.Payload(packet[wire.HeaderSize:])
		require.True(t, ok)
		packet = packet[wire.HeaderSize+len(payload):]
		if carriesCopies(&h) {
			data, s, ok := recovery.SplitCopies(h.Cmd == wire.CmdAck, payload, h.SN, h.TS)
			require.True(t, ok)
			for c, more := s.Next(); more; c, more = s.Next() {
				carried = append(carried, c)
			}
			if payload = data; h.Cmd != wire.CmdAck {
				h.Frg &^= recovery.CopiesFlag
			}
		}
		plain = append(plain, segment(h.Cmd, h.Frg, uint32(h.TS), uint32(h.SN), uint32(h.Una), string(payload))...)
	}
	return plain, carried
}

// shortHarness returns a harness with a peer that takes copies in the short form.
func shortHarness(t *testing.T, ext Extensions) *harness {
	h := newHarness(t, func(k *KCP) {
		k.SetFastResend(1)
		k.SetExtensions(ext)
		k.Enable(FeatureCopies | FeatureInformed)
	})
	h.k.hooks.Output = func(packet []byte) {
		plain, carried := copiesIn(t, packet)
		h.out = append(h.out, describe(t, plain)...)
		for _, c := range carried {
			h.out = append(h.out, fmt.Sprintf("copy %d frg=%d %q", c.SN, c.Frg, c.Data))
		}
	}
	return h
}

// carrier returns a PUSH, or an ACK, that carries copies.
func carrier(cmd uint8, frg uint8, ts, sn, una uint32, data string, all ...recovery.Copy) []byte {
	packet := segment(cmd, frg, ts, sn, una, data)
	var c recovery.CopyCarrier
	if !c.Find(packet, Seq(sn)) {
		panic("it cannot carry copies")
	}
	for _, of := range all {
		packet = c.Append(packet, &of, Seq(ts))
	}
	return packet
}

// Two more packets carry a copy of each small segment, and three after a loss. They have
// no header, and ride behind the data, or in an ACK.
func TestShortCopies(t *testing.T) {
	h := shortHarness(t, Extensions{Redundancy: 100})
	step := func(data string, want ...string) {
		t.Helper()
		h.send(data)
		h.advance(10)
		h.want(want...)
	}
	step("a", `push 0 frg=0 "a"`)
	step("b", `push 1 frg=0 "b"`, `copy 0 frg=0 "a"`)
	step("c", `push 2 frg=0 "c"`, `copy 1 frg=0 "b"`, `copy 0 frg=0 "a"`)
	step("d", `push 3 frg=0 "d"`, `copy 2 frg=0 "c"`, `copy 1 frg=0 "b"`)
	require.EqualValues(t, 5, h.k.Counters().Repeats)
	h.input(segment(wire.CmdPush, 0, 7, 0, 3, "p"))
	h.advance(10)
	h.want(`ack 0 ts=7 una=1 wnd=128`, `copy 3 frg=0 "d"`)
	h.input(ack(4, 0, 3)) // nothing of the kind was sent
	h.k.snd.redundancy.OnLoss(h.k.snd.nxt)
	h.send("e")
	h.advance(0) // in the same millisecond nothing is copied twice
	h.want(`push 4 frg=0 "e"`)
	step("f", `push 5 frg=0 "f"`, `copy 4 frg=0 "e"`, `copy 3 frg=0 "d"`)
	step("g", `push 6 frg=0 "g"`, `copy 5 frg=0 "f"`, `copy 4 frg=0 "e"`, `copy 3 frg=0 "d"`)
	h.send(strings.Repeat("L", recovery.MaxCopied+1))
	h.advance(10)
	h.out = nil
	step("h", `push 8 frg=0 "h"`, `copy 6 frg=0 "g"`, `copy 5 frg=0 "f"`)
}

// A copy of what is missing counts before the data of its carrier, so no gap shows. One
// of what has arrived is not acknowledged.
func TestCopiesAreTaken(t *testing.T) {
	h := shortHarness(t, Extensions{})
	h.input(push(0, 0, "a"))
	h.advance(0)
	h.out = nil
	h.input(carrier(wire.CmdPush, 0, 5, 3, 0, "d", recovery.Copy{SN: 2, Data: []byte("c")}, recovery.Copy{SN: 1, Data: []byte("b")}, recovery.Copy{SN: 0, Data: []byte("a")}))
	for _, want := range []string{"a", "b", "c", "d"} {
		h.recv(want)
	}
	h.advance(0)
	h.want(`ack 2 ts=5 una=4 wnd=128`, `ack 1 ts=5 una=4 wnd=128`, `ack 3 ts=5 una=4 wnd=128`)
	require.EqualValues(t, 5, h.k.Counters().SegmentsReceived)
	require.EqualValues(t, 1, h.k.Counters().Duplicates)
	require.EqualValues(t, 4, h.k.Counters().BytesReceived)

	h.input(carrier(wire.CmdAck, 0, 900, 4, 0, "", recovery.Copy{SN: 4, Frg: 1, Data: []byte("e")}))
	h.input(carrier(wire.CmdPush, 0, 9, 6, 0, "g", recovery.Copy{SN: 5, Data: []byte("f")}))
	h.recv("ef")
	h.recv("g")
	h.out = nil
	h.advance(0)
	h.want(`ack 4 ts=900 una=7 wnd=128`, `ack 5 ts=9 una=7 wnd=128`, `ack 6 ts=9 una=7 wnd=128`)
}

// To a machine whose peer has not announced them, there are no copies: frg is one, and
// an ACK's payload means nothing.
func TestCopiesHaveToBeAnnounced(t *testing.T) {
	h := newHarness(t, nil)
	with := carrier(wire.CmdPush, 0, 5, 1, 0, "d", recovery.Copy{SN: 0, Data: []byte("c")})
	h.input(with)
	require.Equal(t, uint8(0x80), h.k.rcv.ring.at(1).frg)
	require.Equal(t, string(with[wire.HeaderSize:]), string(h.k.rcv.ring.at(1).data))
	h.input(carrier(wire.CmdAck, 0, 5, 2, 0, "", recovery.Copy{SN: 0, Data: []byte("c")}))
	require.Zero(t, h.k.rcv.nxt)
	h.out = nil
	h.advance(0)
	h.want(`ack 1 ts=5 una=0 wnd=128`)
}

// Copies far ahead or behind, of streams that nobody takes, and with lengths that lie,
// are dropped and counted, and move nothing.
func TestHostileCopies(t *testing.T) {
	c := recovery.Copy{SN: 1, Data: []byte("x")}
	for _, test := range []struct {
		name    string
		packet  []byte
		err     error
		outside uint64 // segments that lie beyond the window
		twice   uint64 // that have arrived
	}{
		{"beyond the window", carrier(wire.CmdPush, 0, 0, 127, 0, "d", recovery.Copy{SN: 128 + 5}), nil, 1, 0},
		{"of a segment half the circle away", carrier(wire.CmdPush, 0, 0, 1<<31-5, 0, "d", recovery.Copy{SN: 1<<31 - 6}), nil, 2, 0},
		{"long ago", carrier(wire.CmdPush, 0, 0, 1<<32-60, 0, "d", recovery.Copy{SN: 1<<32 - 100}), nil, 0, 2},
		{"in an ACK, beyond the window", carrier(wire.CmdAck, 0, 0, 1<<20, 0, "", recovery.Copy{SN: 1 << 20}), nil, 1, 0},
		{"of a stream", carrier(wire.CmdPush, 0, 0, 2, 0, "d", recovery.Copy{SN: 1, Stream: true}), ErrCommand, 0, 0},
		{"no size", segment(wire.CmdPush, recovery.CopiesFlag, 0, 2, 0, "d"), ErrSegmentLength, 0, 0},
		{"a size that lies", segment(wire.CmdPush, recovery.CopiesFlag, 0, 2, 0, "data\x05\x00"), ErrSegmentLength, 0, 0},
		{"a length that lies", segment(wire.CmdPush, recovery.CopiesFlag, 0, 2, 0, "\x01\x7fabcd\x06\x00"), ErrSegmentLength, 0, 0},
		{"too short for an ACK's", segment(wire.CmdAck, 0, 0, 2, 0, "1234567"), ErrSegmentLength, 0, 0},
		{"too many", segment(wire.CmdPush, recovery.CopiesFlag, 0, 2, 0, string(make([]byte, 2*recovery.MostCopies+2))+"\x42\x00"), ErrSegmentLength, 0, 0},
		{"another conversation", append([]byte{9}, carrier(wire.CmdPush, 0, 0, 2, 0, "d", c)[1:]...), ErrConv, 0, 0},
		{"una that was never sent", carrier(wire.CmdPush, 0, 0, 2, 1, "d", c), ErrForgedUna, 0, 0},
	} {
		h := shortHarness(t, Extensions{})
		require.ErrorIs(t, h.k.Input(test.packet), test.err, test.name)
		n := h.k.Counters()
		require.Equal(t, test.outside, n.OutOfWindow, test.name)
		require.Equal(t, test.twice, n.Duplicates, test.name)
		require.Zero(t, h.k.rcv.nxt, test.name)
		require.LessOrEqual(t, len(h.k.rcv.acks), 2, test.name)
		requireBooks(t, h.k)
		h.out = nil
	}
}
