package kcp

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/arqnet/kcp/internal/streams"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/netsim"
)

// own returns a segment of the session itself with an SSN.
func own(sn, ssn uint32, kind, frg uint8, data string) []byte {
	b := binary.LittleEndian.AppendUint32([]byte{0, 0, 0, 0, kind}, ssn)
	return segment(cmdStream, 0, 0, sn, 0, string(append(append(b, frg), data...)))
}

// ofStream returns a segment of a stream.
func ofStream(sn uint32) []byte {
	return segment(cmdStream, 0, 0, sn, 0, "\x01\x00\x00\x00\x08\x00\x00\x00\x00......12345678")
}

// Segments of the session itself are read in the order of their SSN, which counts PUSH
// too, and wait for no segment of a stream.
func TestOwnSegments(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		input  [][]byte
		read   []string
		acks   int // segments that are acknowledged
		broken uint64
	}{
		{name: "behind a missing segment of a stream", acks: 2, read: []string{"a", "b"},
			input: [][]byte{own(1, 0, streams.OwnData, 0, "a"), own(3, 1, streams.OwnData, 0, "b")}},
		{name: "in the wrong order", acks: 2, read: []string{"a", "b"},
			input: [][]byte{own(3, 1, streams.OwnData, 0, "b"), own(1, 0, streams.OwnData, 0, "a")}},
		{name: "behind a missing one", acks: 2, read: []string{"a"},
			input: [][]byte{own(0, 0, streams.OwnData, 0, "a"), own(2, 2, streams.OwnData, 0, "c")}},
		{name: "behind PUSH", acks: 3, read: []string{"p", "q", "a"},
			input: [][]byte{own(2, 2, streams.OwnData, 0, "a"), push(1, 0, "q"), push(0, 0, "p")}},
		{name: "behind PUSH that arrived before", acks: 3, read: []string{"p", "q", "a"},
			input: [][]byte{push(0, 0, "p"), push(1, 0, "q"), own(5, 2, streams.OwnData, 0, "a")}},
		{name: "a missing PUSH", acks: 2, read: []string{"p"},
			input: [][]byte{push(0, 0, "p"), own(2, 2, streams.OwnData, 0, "a")}},
		{name: "fragments", acks: 4, read: []string{"ab", "c"},
			input: [][]byte{own(7, 2, streams.OwnData, 0, "c"), own(5, 1, streams.OwnData, 0, "b"), own(3, 0, streams.OwnData, 1, "a"), ofStream(4)}},
		{name: "an abandoned message", acks: 3, read: []string{"c"},
			input: [][]byte{own(3, 0, streams.OwnAbandon, 1, ""), own(5, 1, streams.OwnData, 0, "b"), own(7, 2, streams.OwnData, 0, "c")}},
		{name: "abandoned before it arrived", acks: 3, read: []string{"c"},
			input: [][]byte{own(7, 2, streams.OwnData, 0, "c"), own(5, 1, streams.OwnAbandon, 0, ""), own(3, 0, streams.OwnData, 1, "a")}},
		{name: "one SSN twice", acks: 3, broken: 1, read: []string{"a", "b"},
			input: [][]byte{own(3, 1, streams.OwnData, 0, "b"), own(4, 1, streams.OwnData, 0, "x"), own(1, 0, streams.OwnData, 0, "a")}},
		{name: "an SSN that has passed", acks: 1, read: []string{"a"},
			input: [][]byte{own(1, 0, streams.OwnData, 0, "a"), own(2, 0, streams.OwnData, 0, "x")}},
		{name: "beyond the window", input: [][]byte{own(1, 128, streams.OwnData, 0, "a"), own(2, 1<<31, streams.OwnData, 0, "x"), own(3, 1<<32-1, streams.OwnData, 0, "x")}},
		{name: "a duplicate", acks: 2, read: []string{"a"},
			input: [][]byte{own(1, 0, streams.OwnData, 0, "a"), own(1, 0, streams.OwnData, 0, "x")}},
		{name: "too short", acks: 1, input: [][]byte{segment(cmdStream, 0, 0, 0, 0, "\x00\x00\x00\x00\x00\x00\x00\x00\x00")}},
		{name: "ABANDON with data", acks: 1, input: [][]byte{own(0, 0, streams.OwnAbandon, 0, "x")}},
	} {
		h := newHarness(t, func(k *KCP) { k.hooks.host = &droppingHost{testHost: newTestHost(t, k)} })
		for _, p := range tc.input {
			h.input(p)
			requireBooks(t, h.k)
		}
		require.Len(t, h.k.rcv.acks, tc.acks, tc.name)
		for _, want := range tc.read {
			h.recv(want)
		}
		require.Equal(t, -1, h.k.PeekSize(), tc.name)
		require.Equal(t, tc.broken, h.k.counters.BrokenMessages, tc.name)
		h.out = nil
	}
}

// droppingHost takes any segment of a stream.
type droppingHost struct{ *testHost }

func (droppingHost) onStream([]byte) {}

// While the receive queue is full, segments with an SSN are kept up to the receive
// window, and no more, whatever their sn.
func TestOwnSegmentsAreBounded(t *testing.T) {
	t.Parallel()
	h := newHarness(t, func(k *KCP) { k.hooks.host = newTestHost(t, k) })
	const most = 2 * minRcvWnd
	for i := range uint32(4 * minRcvWnd) {
		h.input(own(i, i, streams.OwnData, 0, fmt.Sprint(i)))
		if i < most {
			require.Equal(t, seq(i+1), h.k.rcv.nxt)
		}
	}
	require.Equal(t, seq(most), h.k.rcv.nxt)
	require.EqualValues(t, 2*minRcvWnd, h.k.counters.OutOfWindow)
	require.Zero(t, h.k.wndUnused())
	requireBooks(t, h.k)
	for i := range most {
		h.recv(fmt.Sprint(i))
	}
	require.Zero(t, h.k.rare.own.early)
	h.out = nil
}

// The longest message is as long with an SSN as without.
func TestLongestOwnMessage(t *testing.T) {
	t.Parallel()
	k := newHarness(t, nil).k
	const mss, head = 1300 - streams.OwnHeader, streams.OwnHeader
	require.False(t, k.tooMany(streams.MostOwn, maxFragments*1300, mss, head))
	require.True(t, k.tooMany(streams.MostOwn, maxFragments*1300+1, mss, head))
	require.True(t, k.tooMany(streams.MostOwn+1, 1, mss, head))
}

// A peer that does not take DATA of stream 0 gets PUSH.
func TestOwnSegmentsNeedThePeer(t *testing.T) {
	for _, takes := range []bool{true, false} {
		inWorld(t, 3, netsim.LinkConfig{Loss: 0.1}, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, nil)
			for _, c := range []*Conn{a, b} {
				c.mu.Lock()
				require.NotZero(t, c.hs.capabilities&capOwnOrder)
				if !takes {
					c.hs.capabilities &^= capOwnOrder
				}
				c.mu.Unlock()
			}
			_, err := a.Write(content(1, 5000))
			require.NoError(t, err)
			s, err := a.OpenStream(t.Context(), nil)
			require.NoError(t, err)
			send(t, s, content(2, 50_000))
			_, err = a.Write(content(3, 5000))
			require.NoError(t, err)
			r, err := b.AcceptStream(t.Context())
			require.NoError(t, err)
			receive(t, b, slices.Concat(content(1, 5000), content(3, 5000)))
			receive(t, r, content(2, 50_000))
			a.mu.Lock()
			defer a.mu.Unlock()
			require.Equal(t, takes, a.kcp.load().payload < a.kcp.cfg.mss)
		})
	}
}
