package kcp

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/fec"
	"github.com/arqnet/kcp/internal/opening"
	"github.com/arqnet/kcp/internal/udp"
)

// A datagram counts for the anti-amplification limit, so data that has waited for that
// leaves at once, and not with the next time-out.
func TestCreditOfDatagrams(t *testing.T) {
	t.Parallel()
	const conv = 7
	w := newMachineWorld(t, 1, &Config{}, &Config{})
	sent := 0
	w.send = func(*machineEnd, *udp.Datagram) { sent++ }
	server, from := w.ends[1], w.ends[0].addr
	legacy := New(conv, func(p []byte) { server.receive(p, from) })
	legacy.SetClock(1)
	_, err := legacy.Send(make([]byte, 300))
	require.NoError(t, err)
	legacy.Flush()
	server.respond()
	require.NotNil(t, server.conn)
	require.True(t, server.conn.hs.unvalidated.Load())
	n, err := server.Write(0, make([]byte, 5000), false)
	require.NoError(t, err)
	require.Equal(t, 5000, n)
	before := sent
	w.now += 10 * time.Millisecond
	b := make([]byte, datagramHeader+1300)
	fec.PutOOB(b)
	binary.LittleEndian.PutUint32(b[datagramHeader-4:], conv)
	server.receive(b, from)
	server.respond()
	require.Greater(t, sent, before)
}

// A session that was ended for want of memory has dropped what was not read. A call that
// reads returns that, and not the end of the peer's data, which has arrived too.
func TestDroppedDataIsNoEnd(t *testing.T) {
	inWorld(t, 1, clean, func(t *testing.T, w *world) {
		a, b, _ := w.pair(nil, nil)
		_, err := a.Write(make([]byte, 100_000))
		require.NoError(t, err)
		require.NoError(t, a.CloseWrite())
		time.Sleep(time.Second)
		b.mu.Lock()
		all := b.allReceived()
		b.mu.Unlock()
		require.True(t, all)
		require.True(t, b.shedMemory())
		n, err := b.Read(make([]byte, 10))
		require.Zero(t, n)
		require.ErrorIs(t, err, ErrMemoryPressure)
	})
}

// What an outage has lost of HELLO does not show a legacy peer. After it, one more that
// is lost beside the first data makes neither end take the other for one.
func TestHellosBeforeAnOutageEnds(t *testing.T) {
	t.Parallel()
	w := newMachineWorld(t, 1, &Config{}, &Config{})
	var wire [2][][]byte
	lost := func(from *machineEnd, p []byte) bool {
		return from.side == 0 && (w.now < 6*time.Second || w.now < 9*time.Second && hasSignal(p, sigHello))
	}
	w.send = func(from *machineEnd, d *udp.Datagram) {
		if to := 1 - from.side; !lost(from, d.Buf) {
			wire[to] = append(wire[to], bytes.Clone(d.Buf))
		}
	}
	w.dial(7, false)
	_, err := w.ends[0].Write(0, []byte("data"), false)
	require.NoError(t, err)
	for ; w.now < 20*time.Second; w.now += 10 * time.Millisecond {
		for side, e := range w.ends {
			arrived := wire[side]
			wire[side] = nil
			for _, p := range arrived {
				e.receive(p, w.ends[1-side].addr)
			}
			e.respond()
			e.wakes()
			require.True(t, e.conn == nil || e.conn.hs.Peer != opening.Legacy, "end %d at %v", side, w.now)
		}
	}
	for _, e := range w.ends {
		require.NoError(t, e.conn.closing.err)
		require.GreaterOrEqual(t, e.conn.hs.Peer, opening.Extended)
	}
}

// hasSignal reports whether a packet in the clear has a signal.
func hasSignal(packet []byte, code signalCode) bool {
	for len(packet) >= headerSize {
		h := decodeHeader(packet)
		if s, is := h.signal(); is && s.code == code {
			return true
		}
		payload, _ := h.payload(packet[headerSize:])
		packet = packet[headerSize+len(payload):]
	}
	return false
}
