package recovery

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/internal/container"
	"github.com/arqnet/kcp/internal/rulebook"
	"github.com/arqnet/kcp/internal/wire"
)

// segment returns a segment.
func segment(cmd, frg uint8, ts, sn uint32, data string) []byte {
	b := make([]byte, wire.HeaderSize, wire.HeaderSize+len(data))
	b[4], b[5] = cmd, frg
	binary.LittleEndian.PutUint32(b[8:], ts)
	binary.LittleEndian.PutUint32(b[12:], sn)
	binary.LittleEndian.PutUint32(b[20:], uint32(len(data)))
	return append(b, data...)
}

// read returns what the last segment of a packet carries: its data and the copies.
func read(t *testing.T, packet []byte, at int) (data []byte, s CopySection, all []Copy) {
	h := packet[at:]
	cmd, length := h[4], binary.LittleEndian.Uint32(h[20:])
	require.Len(t, h, wire.HeaderSize+int(length), "the carrier is the end of the packet")
	require.True(t, cmd == wire.CmdAck && length > 0 || h[5]&CopiesFlag != 0)
	data, s, ok := SplitCopies(cmd == wire.CmdAck, h[wire.HeaderSize:], container.Serial(binary.LittleEndian.Uint32(h[12:])), container.Serial(binary.LittleEndian.Uint32(h[8:])))
	require.True(t, ok)
	rest := s
	for c, more := rest.Next(); more; c, more = rest.Next() {
		all = append(all, c)
	}
	return data, s, all
}

// The bytes are those that WIRE.md shows.
func TestShortForm(t *testing.T) {
	for _, test := range []struct {
		name string
		last []byte // segment of the packet
		copy Copy
		want string // what follows the header
	}{
		{"PUSH", segment(wire.CmdPush, 0, 5, 9, "data"), Copy{SN: 7, Data: []byte("copy")}, "data\x02\x04copy\x06\x00"},
		{"of a fragment", segment(wire.CmdPush, 3, 5, 9, "d"), Copy{SN: 8, Frg: 4, Data: []byte("c")}, "d\x01\x81\x02\x04c\x05\x00"},
		{"of a stream", segment(wire.CmdStream, 0, 5, 9, "d"), Copy{SN: 8, Frg: 4, Stream: true, Data: []byte("c")}, "d\x01\x81\x01c\x04\x00"},
		{"later than its carrier", segment(wire.CmdPush, 0, 5, 9, ""), Copy{SN: 12}, "\xfd\x00\x02\x00"},
		{"long", segment(wire.CmdPush, 0, 5, 9, ""), Copy{SN: 8, Data: make([]byte, 256)}, "\x01\x80\x08" + string(make([]byte, 256)) + "\x03\x01"},
		{"ACK", segment(wire.CmdAck, 0, 5, 9, ""), Copy{SN: 300, Data: []byte("c")}, "\x2d\x01\x00\x00\x07\x00\x00\x00\x01\x01c"},
	} {
		var c CopyCarrier
		packet := append(segment(wire.CmdAck, 0, 1, 2, ""), test.last...)
		require.True(t, c.Find(packet, 301), test.name)
		n := c.Cost(&test.copy)
		got := c.Append(packet, &test.copy, 7)
		require.Equal(t, test.want, string(got[2*wire.HeaderSize:]), test.name)
		require.Len(t, got, len(packet)+n, test.name)
		_, s, all := read(t, got, wire.HeaderSize)
		require.Len(t, all, 1)
		require.Equal(t, test.copy.SN, all[0].SN, test.name)
		require.Equal(t, test.copy.Stream, all[0].Stream, test.name)
		require.Equal(t, map[bool]container.Serial{false: 5, true: 7}[test.name == "ACK"], s.TS, test.name)
	}
}

// What a packet carries is what was put in, for any segments and copies, and costs what
// was said.
func TestRandomCopies(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		sn, ts := random.Uint32(), random.Uint32()
		carrier := []uint8{wire.CmdPush, wire.CmdStream, wire.CmdAck}[random.IntN(3)]
		data, frg := "", uint8(random.IntN(CopiesFlag))
		if carrier != wire.CmdAck {
			data = string(make([]byte, random.IntN(100)))
		}
		first := segment(wire.CmdWins, 2, 0, 0, "")
		packet := append(bytes.Clone(first), segment(carrier, frg, ts, sn, data)...)
		var c CopyCarrier
		require.True(t, c.Find(packet, container.Serial(sn)))
		var put []Copy
		for range random.IntN(MostCopies + 3) {
			of := Copy{SN: container.Serial(sn + random.Uint32N(260) - 130), Frg: uint8(random.IntN(3)), Stream: random.IntN(2) == 0, Data: make([]byte, random.IntN(1<<random.IntN(14)))}
			n := c.Cost(&of)
			d := container.Serial(sn).Diff(of.SN)
			require.Equal(t, d >= -128 && d < 128 && len(put) < MostCopies && len(of.Data) <= MaxCopyPayload, n > 0)
			if n == 0 || len(packet)+n > 1<<16 {
				continue
			}
			before := len(packet)
			packet = c.Append(packet, &of, container.Serial(ts))
			require.Len(t, packet, before+n)
			if of.Stream {
				of.Frg = 0
			}
			put = append(put, of)
		}
		if len(put) == 0 {
			continue
		}
		got, s, all := read(t, packet, len(first))
		require.Equal(t, data, string(got))
		require.Equal(t, container.Serial(ts), s.TS)
		require.Equal(t, put, all)
		require.False(t, new(CopyCarrier).Find(packet, 0), "a segment carries copies once")
	}
}

// What cannot carry copies is not asked to.
func TestCarriers(t *testing.T) {
	for cmd := range uint8(90) {
		want := cmd == wire.CmdPush || cmd == wire.CmdAck || cmd == wire.CmdStream
		require.Equal(t, want, new(CopyCarrier).Find(segment(cmd, 0, 0, 0, ""), 0), cmd)
	}
	require.False(t, new(CopyCarrier).Find(segment(wire.CmdAck, 0, 0, 0, "x"), 0))
	var c *CopyCarrier
	require.Zero(t, c.Cost(new(Copy)))
	c.Close()
	c = new(CopyCarrier)
	packet := segment(wire.CmdPush, 0, 0, 0, "x")
	require.True(t, c.Find(packet, 0))
	require.NotZero(t, c.Cost(new(Copy)))
	c.Close()
	require.Zero(t, c.Cost(new(Copy)), "another segment follows")
}

// Lengths that lie, and too many copies, are found before anything counts.
func TestMalformedCopies(t *testing.T) {
	for _, payload := range []string{
		"", "\x00", "\x01\x00", "\xff\xff", "data\x05\x00", // no size, or more than there is
		"\x01\x01\x00", "\x01\x00\x01\x03\x00", // half a copy
		"\x01\x05abcd\x06\x00", "\x01\x80\x02\x00", // more data than there is, no third byte
		"\x01\x80\x04" + string(make([]byte, 127)) + "\x82\x00", // 128 bytes
		"\x01\x81\x02\x03\x00", // no frg
		string(make([]byte, 2*(MostCopies+1))) + "\x42\x00",
	} {
		_, _, ok := SplitCopies(false, []byte(payload), 0, 0)
		require.False(t, ok, "%q", payload)
	}
	for _, payload := range []string{"", "1234567", "12345678\x01", "12345678\x01\x01", "12345678" + string(make([]byte, 2*(MostCopies+1)))} {
		_, _, ok := SplitCopies(true, []byte(payload), 0, 0)
		require.False(t, ok, "%q", payload)
	}
	_, _, ok := SplitCopies(false, append(make([]byte, 2*MostCopies), 2*MostCopies, 0), 0, 0)
	require.True(t, ok)
	_, _, ok = SplitCopies(true, []byte("12345678"), 0, 0)
	require.True(t, ok, "none")
}

// Any payload yields no more copies than its bytes allow, which are part of it.
func FuzzSplit(f *testing.F) {
	f.Add(false, []byte("data\x02\x04copy\x06\x00"))
	f.Add(false, []byte("d\x01\x81\x02\x04c\x05\x00"))
	f.Add(true, []byte("\x2d\x01\x00\x00\x07\x00\x00\x00\x01\x01c"))
	f.Fuzz(func(t *testing.T, ack bool, payload []byte) {
		data, s, ok := SplitCopies(ack, payload, 100, 7)
		if !ok {
			return
		}
		bytes, n := len(data), 0
		for c, more := s.Next(); more; c, more = s.Next() {
			bytes, n = bytes+2+len(c.Data), n+1
		}
		if bytes > len(payload) || n > MostCopies || ack && len(data) > 0 {
			t.Fatalf("%d copies, %d bytes of %d", n, bytes, len(payload))
		}
	})
}

// The constants of the package are the figures that RULES.md and WIRE.md say.
func TestCopyFigures(t *testing.T) {
	const small = "| Copies of small segments"
	rulebook.Check(t, "RULES.md", []rulebook.Figure{
		{small, "256 bytes", MaxCopied},
		{small, "newest 16", CopyReach},
		{small, "28 for IPv4", PacketOverhead},
		{small, "48 segments", LossMemory},
		{small, "28 bytes", SavedAck},
		{small, "1024 in reserve", burst},
		{"| Copies of small segments", "4 segments", RetransmitsReach},
		{"Copies in the short form", "2 of each", LeastCopies},
		{"Copies in the short form", "400 segments", LongLossMemory},
		{"Copies in the short form", "28 bytes", SavedAck},
		{"Copies in the short form", "32 in a segment", MostCopies},
	})
	rulebook.Check(t, "WIRE.md", []rulebook.Figure{
		{"- A segment has at most", "32 copies", MostCopies},
		{"Redundant copies: the next packet carries", "256 bytes", MaxCopied},
	})
}
