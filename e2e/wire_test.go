package e2e

import (
	"encoding/binary"
	"fmt"
	"io"
	"iter"
	"net"
	"testing"
	"time"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/internal/admission"
	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/netsim"
	"github.com/arqnet/kcp/stats"
	"github.com/stretchr/testify/require"
)

// The segments of WIRE.md §1 and the signals of §5, written down once more: who
// changes a number on the wire changes it here too.
const (
	headerSize = 24

	cmdAck  = 82
	cmdWask = 83
	cmdWins = 84
)

// signalCode is the frg of a signal.
type signalCode uint8

const (
	sigHello   signalCode = 1
	sigInfo    signalCode = 2
	sigConfirm signalCode = 3
	sigFin     signalCode = 4
	sigClose   signalCode = 5
	sigPing    signalCode = 6
	sigCookie  signalCode = 7
	sigProbe   signalCode = 10

	signalVersion = 2 // the sn of INFO
)

const (
	timeWaitTime  = admission.TimeWait
	handshakeTime = 10 * time.Second
	handoverGrace = time.Millisecond      // for which a socket may have no reader
	roundTrip     = 20 * time.Millisecond // that of the link clean
)

// header is the fixed part of a segment.
type header struct {
	conv        uint32
	cmd, frg    uint8
	wnd         uint16
	ts, sn, una uint32
	len         uint32
}

// decodeHeader reads a header from b.
func decodeHeader(b []byte) header {
	word := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
	return header{
		conv: word(0), cmd: b[4], frg: b[5], wnd: uint16(word(4) >> 16),
		ts: word(8), sn: word(12), una: word(16), len: word(20),
	}
}

// append appends h to b.
func (h header) append(b []byte) []byte {
	for _, word := range []uint32{h.conv, uint32(h.cmd) | uint32(h.frg)<<8 | uint32(h.wnd)<<16, h.ts, h.sn, h.una, h.len} {
		b = binary.LittleEndian.AppendUint32(b, word)
	}
	return b
}

// headersOf returns the headers of the segments of a packet.
func headersOf(p []byte) iter.Seq[header] {
	return func(yield func(header) bool) {
		for len(p) >= headerSize {
			h := decodeHeader(p)
			if !yield(h) {
				return
			}
			p = p[min(len(p), headerSize+int(h.len)):]
		}
	}
}

// signal is a signal with its two arguments.
type signal struct {
	code   signalCode
	sn, ts uint32
}

// bytes returns the segment of a signal of a conversation.
func (s signal) bytes(conv uint32) []byte {
	h := header{conv: conv, cmd: cmdWins, frg: uint8(s.code), wnd: 128, sn: s.sn, ts: s.ts}
	switch s.code {
	case sigHello, sigConfirm, sigFin, sigClose, sigPing, sigProbe:
		h.cmd = cmdWask // wants an answer
	}
	return h.append(nil)
}

// signal returns the signal that h carries, if it carries one.
func (h header) signal() (s signal, ok bool) {
	ok = h.frg != 0 && (h.cmd == cmdWask || h.cmd == cmdWins)
	return signal{signalCode(h.frg), h.sn, h.ts}, ok
}

// infoSignal is the INFO of an endpoint of version 2 that has PROBE, reasons of
// CLOSE, and delays of ACKs.
func infoSignal() signal { return signal{sigInfo, signalVersion, 1 | 4 | 32} }

// bytesOf returns the segment of a signal.
func bytesOf(s signal) []byte { return s.bytes(7) }

func hello(token uint32) []byte { return bytesOf(signal{sigHello, 0, token}) }

// signals returns how many signals of a kind are in a packet.
func signals(p []byte, code signalCode) (n int) {
	for h := range headersOf(p) {
		if s, ok := h.signal(); ok && s.code == code {
			n++
		}
	}
	return n
}

// echoAfter answers each message of b, after a time, until the session ends.
func echoAfter(b *kcp.Conn, think time.Duration) {
	buf := make([]byte, 64)
	for {
		if _, err := io.ReadFull(b, buf); err != nil {
			return
		}
		time.Sleep(think)
		if _, err := b.Write(buf); err != nil {
			return
		}
	}
}

// exchange sends n messages, each a while after the answer to the one before has
// come.
func exchange(t *testing.T, a *kcp.Conn, n int, pause time.Duration) {
	buf := make([]byte, 64)
	for range n {
		writeAll(t, a, buf)
		_, err := io.ReadFull(a, buf)
		require.NoError(t, err)
		time.Sleep(pause)
	}
}

// An exchange takes two packets, as ACKs ride with the answer and with the next
// message, but for the few ACKs that do not wait. One that leaves alone is of a
// side that says nothing for longer than an ACK may wait. Round-trip samples stay
// those of the path.
func TestPacketsPerExchange(t *testing.T) {
	const ms = time.Millisecond
	const n = 2 * recovery.UndelayedShare // exchanges
	cases := []struct {
		oneWay, think, pause time.Duration
		client, server       uint64 // packets in n exchanges
	}{
		{0, 0, 0, n, n},
		{50 * time.Microsecond, 0, 0, n, n},
		{50 * time.Microsecond, 5 * ms, 0, n, n + 2},
		{ms, 15 * ms, 0, n, n + 2},
		{ms, 0, 15 * ms, n + 2, n},
		{ms, 10 * ms, 10 * ms, n + 2, n + 2},
		{20 * ms, 0, 0, n, n},
		{20 * ms, 15 * ms, 0, n, n + 2},
		{20 * ms, 0, 16 * ms, n + 2, n},
		{50 * time.Microsecond, 0, 50 * ms, n + 2, n}, // 20 messages a second
		{ms, 20 * ms, 50 * ms, n + 2, n + 2},
		{40 * ms, 50 * ms, 80 * ms, n + 2, n + 2},
		{ms, 110 * ms, 110 * ms, 2 * n, 2 * n},
	}
	for i, c := range cases {
		config := kcp.Config{}
		if i%2 == 1 {
			config = kcp.LowLatency()
		}
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			inWorld(t, uint64(i/2), netsim.LinkConfig{Delay: c.oneWay}, func(t *testing.T, w *world) {
				a, b, _ := w.pair(&config, &config)
				go echoAfter(b, c.think)
				exchange(t, a, recovery.FirstReplies+5, c.pause)
				before, answered := a.Stats().PacketsSent, b.Stats().PacketsSent
				exchange(t, a, n, c.pause)
				require.Equal(t, c.client, a.Stats().PacketsSent-before)
				require.Equal(t, c.server, b.Stats().PacketsSent-answered)
				for _, s := range []stats.Conn{a.Stats(), b.Stats()} {
					require.Zero(t, s.Retransmits()+s.Repeats)
					most := 2*c.oneWay + min(recovery.MaxAckDelay*ms, max(recovery.MinAckDelay*ms, c.oneWay)) + ms
					require.LessOrEqual(t, s.RTT, most)
				}
			})
		})
	}
}

// No text of a peer brings control characters into the text of an error, where it
// would pass for lines of a log. What prints is left as it is.
func TestTextsOfPeersPrint(t *testing.T) {
	for text, shown := range map[string]string{
		"going down: back at 9 o'clock, 3 °C": "going down: back at 9 o'clock, 3 °C",
		"bye\nlevel=ERROR msg=forged":         `"bye\nlevel=ERROR msg=forged"`,
		"\x1b[2J\u202egpj.exe":                `"\x1b[2J\u202egpj.exe"`,
	} {
		inWorld(t, 0, clean, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, nil)
			require.NoError(t, a.CloseWithError(9, text))
			_, err := b.Read(make([]byte, 1))
			var reason *kcp.PeerCloseError
			require.ErrorAs(t, err, &reason)
			require.Equal(t, kcp.PeerCloseError{Code: 9, Text: text}, *reason)
			require.ErrorIs(t, err, kcp.ErrPeerClosed)
			require.ErrorContains(t, err, "kcp: session closed by the peer with code 9: "+shown)
			require.NoError(t, b.Close())
		})
	}
}

// AbortWithError ends the session at the peer on the way of one packet, with the reason,
// whatever waits to be delivered; also while Close lingers. Old data is read before.
func TestAbortWithError(t *testing.T) {
	for _, lingers := range []bool{false, true} {
		inWorld(t, 1, slow, func(t *testing.T, w *world) {
			a, b, _ := w.pair(nil, nil)
			_, err := a.Write(content(1, 3<<20)) // more than the receive window
			require.NoError(t, err)
			time.Sleep(time.Second)
			if lingers {
				go func() { _ = a.Close() }()
				time.Sleep(time.Second)
			}
			begin := time.Now()
			require.NoError(t, a.Abort(7, "full"))
			<-b.Done()
			require.LessOrEqual(t, time.Since(begin), slowWay+slowWay/4)
			want := &kcp.PeerCloseError{Code: 7, Text: "full", Aborted: true}
			require.Equal(t, want, b.Err())
			require.ErrorIs(t, b.Err(), kcp.ErrReset)
			require.NotErrorIs(t, b.Err(), kcp.ErrPeerClosed)
			require.EqualError(t, b.Err(), "kcp: session aborted by the peer with code 7: full")
			_, err = b.Write([]byte("late"))
			var reason *kcp.PeerCloseError
			require.ErrorAs(t, err, &reason)
			require.Equal(t, want, reason)
			got, err := io.ReadAll(b)
			require.ErrorAs(t, err, &reason)
			require.Equal(t, want, reason)
			require.NotEmpty(t, got)
			require.Less(t, len(got), 3<<20)
			require.Equal(t, net.ErrClosed, a.Err())
			require.ErrorIs(t, a.Abort(8, ""), net.ErrClosed)
		})
	}
}
