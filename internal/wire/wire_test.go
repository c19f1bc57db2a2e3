package wire

import (
	"bytes"
	"math"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/container"
	"github.com/arqnet/kcp/internal/rulebook"
)

// The constants of the format are the figures that WIRE.md says.
func TestRuleFigures(t *testing.T) {
	const command = "| 4 | 1 | cmd |"
	rulebook.Check(t, "WIRE.md", []rulebook.Figure{
		{"A UDP payload is one packet", "24 bytes", HeaderSize},
		{command, "81 PUSH", CmdPush},
		{command, "82 ACK", CmdAck},
		{command, "83 WASK", CmdWask},
		{command, "84 WINS", CmdWins},
		{command, "85 PIECE", CmdPiece},
		{command, "86", CmdStream},
		{command, "87 STREAM", CmdStreamPiece},
		{"| 6 | 2 | wnd |", "65535", MaxWindow},
		{"Signals that want an answer are requests", "16 signals", MaxSignals},
	})
	for cmd := range math.MaxUint8 + 1 {
		require.Equal(t, cmd == 81 || cmd == 82 || cmd == 83 || cmd == 84, IsReference(uint8(cmd)), cmd)
		require.Equal(t, cmd == 86 || cmd == 87, IsStream(uint8(cmd)), cmd)
	}
}

// Each field has its place, little-endian, on every machine, and takes any value.
func TestHeader(t *testing.T) {
	const serial = container.Serial(math.MaxUint32)
	for _, tc := range []struct {
		h        Header
		at, size int
	}{
		{Header{}, 0, 0},
		{Header{Conv: math.MaxUint32}, 0, 4}, {Header{Cmd: math.MaxUint8}, 4, 1}, {Header{Frg: math.MaxUint8}, 5, 1},
		{Header{Wnd: MaxWindow}, 6, 2}, {Header{TS: serial}, 8, 4}, {Header{SN: serial}, 12, 4}, {Header{Una: serial}, 16, 4},
		{Header{Len: math.MaxUint32}, 20, 4},
		{Header{math.MaxUint32, math.MaxUint8, math.MaxUint8, MaxWindow, serial, serial, serial, math.MaxUint32}, 0, 24},
	} {
		want := make([]byte, HeaderSize, HeaderSize+1)
		copy(want[tc.at:], bytes.Repeat([]byte{0xff}, tc.size))
		want = append(want, 'x')
		got := bytes.Repeat([]byte{'x'}, HeaderSize+1)
		tc.h.Encode(got)
		require.Equal(t, want, got)
		require.Equal(t, tc.h, DecodeHeader(got))
	}
	want := make([]byte, HeaderSize)
	for i := range want {
		want[i] = byte(i + 1)
	}
	h := Header{0x04030201, 5, 6, 0x0807, 0x0c0b0a09, 0x100f0e0d, 0x14131211, 0x18171615}
	require.Equal(t, h, DecodeHeader(want))
	got := make([]byte, HeaderSize)
	h.Encode(got)
	require.Equal(t, want, got)
	require.Panics(t, func() { DecodeHeader(want[1:]) })
	require.Panics(t, func() { h.Encode(got[1:]) })
}

// A payload is as long as its header says, or is none.
func TestPayload(t *testing.T) {
	for _, n := range []uint32{0, 1, 3, 4, math.MaxInt32, 1 << 31, math.MaxUint32} {
		h := Header{Len: n}
		payload, ok := h.Payload([]byte("abc"))
		require.Equal(t, n <= 3, ok, n)
		require.Equal(t, "abc"[:len(payload)], string(payload))
		require.True(t, !ok || len(payload) == int(n))
	}
	b := make([]byte, HeaderSize+3)
	sent := Header{Conv: 1, Cmd: CmdPush, Una: 2}
	sent.Encode(b)
	PutPayload(b, []byte("abc"))
	h := DecodeHeader(b)
	payload, ok := h.Payload(b[HeaderSize:])
	require.True(t, ok)
	require.Equal(t, "abc", string(payload))
	require.Equal(t, len(b), Size(b))
	sent.Len = 3
	require.Equal(t, sent, h)
}

// signals returns the names and commands of signals as WIRE.md §5 has them.
func signals(t *testing.T) (names map[Code]string, asks map[Code]bool) {
	text, err := os.ReadFile("../../WIRE.md")
	require.NoError(t, err)
	names, asks = make(map[Code]string), make(map[Code]bool)
	for _, m := range regexp.MustCompile(`(?m)^\| (\w+) \| ([A-Za-z ]+) \| (WASK|WINS) \|`).FindAllStringSubmatch(string(text), -1) {
		n, err := strconv.ParseUint(m[1], 0, 8)
		require.NoError(t, err)
		names[Code(n)], asks[Code(n)] = m[2], m[3] == "WASK"
	}
	require.Len(t, names, int(Count)+2, "WELCOME and the answer to COUNT too")
	return names, asks
}

// Codes have the names that WIRE.md has for them, and those ask that leave as a WASK.
func TestCodes(t *testing.T) {
	names, asks := signals(t)
	for n := range math.MaxUint8 + 1 {
		c := Code(n)
		want := names[c]
		if request := names[c&^Answer]; want == "" && c&Answer != 0 && request != "" {
			want = "answer to " + request
		} else if want == "" {
			want = "unknown signal"
		}
		require.Equal(t, want, c.String(), n)
		require.Equal(t, asks[c], Signal{Code: c}.Asks(), n)
	}
}

// A signal is read as it was written, whatever its arguments, and nothing else is one.
func TestSignals(t *testing.T) {
	payload := map[Code]bool{Close: true, Probe: true, ResetKey: true} // as WIRE.md §5 says
	for n := range math.MaxUint8 + 1 {
		s := Signal{Code(n), 0, math.MaxUint32}
		if n%2 == 0 {
			s.SN, s.TS = s.TS, s.SN
		}
		b := make([]byte, HeaderSize)
		s.Encode(Header{Conv: 1, Cmd: CmdPush, Frg: 2, Wnd: 3, TS: 4, SN: 5, Una: 6, Len: 7}, b)
		h := DecodeHeader(b)
		require.Equal(t, [4]uint32{1, 3, 6, 0}, [4]uint32{h.Conv, uint32(h.Wnd), uint32(h.Una), h.Len})
		require.Equal(t, map[bool]uint8{true: CmdWask, false: CmdWins}[s.Asks()], h.Cmd)
		got, is := h.Signal()
		require.Equal(t, n != 0, is)
		require.True(t, got == s || !is)
		require.Equal(t, payload[s.Code], s.Code.MayHavePayload(), n)
		require.Equal(t, Signal{Code(n | 0x80), s.SN, s.TS}, s.Answer())
		for cmd := range math.MaxUint8 + 1 {
			h.Cmd = uint8(cmd)
			h.Encode(b)
			for _, h.Len = range []uint32{0, 1, math.MaxUint32} {
				_, is := h.Signal()
				require.Equal(t, n != 0 && (cmd == CmdWask || cmd == CmdWins) && (h.Len == 0 || payload[s.Code]), is, h)
				require.Equal(t, n == 12 && cmd == CmdWins, IsCrypto(b), h)
			}
		}
	}
}

// HELLO and WELCOME show the token of their sender.
func TestTokenless(t *testing.T) {
	for n := range math.MaxUint8 + 1 {
		c := Code(n)
		require.Equal(t, c == Hello || c == Welcome, Signal{Code: c}.Tokenless(), n)
		require.Equal(t, c == Welcome, Signal{Code: c, TS: 1}.Tokenless(), n)
		require.Equal(t, c == Hello, Signal{Code: c, SN: 1}.Tokenless(), n)
	}
}

// What waits leaves in its order, and is not queued twice in a row, or beyond a limit.
func TestQueue(t *testing.T) {
	var q Queue
	a, b := Signal{Code: Ping, SN: 1}, Signal{Code: Ping, SN: 2}
	require.Zero(t, q.Last())
	q.Take(a)
	q.Add(a, b)
	q.AddOnce(b, 9)
	require.Equal(t, Queue{a, b}, q)
	q.AddOnce(a, 2)
	require.Equal(t, Queue{a, b}, q, "a limit")
	q.AddOnce(a, 3)
	require.Equal(t, Queue{a, b, a}, q)
	q.Take(b)
	require.Equal(t, a, q.Last(), "b is not the last")
	q.Take(a)
	require.Equal(t, Queue{a, b}, q)
	q.Replace(b)
	require.Equal(t, Queue{b}, q)
	q.Drop()
	require.Empty(t, q)
	q.AddOnce(Signal{}, 1)
	require.Len(t, q, 1)
}
