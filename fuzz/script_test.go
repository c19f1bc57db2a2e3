// Package fuzz_test attacks the state machine through its exported API with arbitrary
// packets (FuzzInput), and sessions (TestHostileSessions). KCP_SEED repeats one of the
// random attacks that the plain tests run.
package fuzz_test

import (
	"encoding/binary"
	"os"
	"strconv"
	"testing"

	kcp "github.com/arqnet/kcp"
)

// critical are the distances at which a comparison on the circle of 2^32 goes
// wrong first, besides those near 0.
var critical = [8]uint32{0, 1, ^uint32(0), 128, ^uint32(127), 1<<31 - 1, 1 << 31, 1<<31 + 1}

// far returns one of them, or for half of the choices 0.
func far(choice uint32) uint32 {
	if choice &= 15; choice < 8 {
		return critical[choice]
	}
	return 0
}

// ahead returns how far a is ahead of b: less than 0 if it is behind. What is
// half the circle away is ahead.
func ahead(a, b uint32) int64 {
	if d := int64(a - b); d <= 1<<31 {
		return d
	}
	return -int64(b - a)
}

// Wire format, independent of the package under test.
const (
	headerSize = 24
	cmdPush    = 81
	cmdAck     = 82
	cmdWask    = 83
	cmdWins    = 84
	cmdPiece   = 85
)

// segment is one segment of a packet.
type segment struct {
	conv        uint32
	cmd, frg    byte
	wnd         uint16
	ts, sn, una uint32
	size        uint32
	payload     []byte // where the packet is long enough
}

var le = binary.LittleEndian

func parse(b []byte) segment {
	return segment{
		conv: le.Uint32(b), cmd: b[4], frg: b[5], wnd: le.Uint16(b[6:]),
		ts: le.Uint32(b[8:]), sn: le.Uint32(b[12:]), una: le.Uint32(b[16:]), size: le.Uint32(b[20:]),
	}
}

// segments takes a packet apart, up to the first segment that is not whole.
func segments(packet []byte) (all []segment) {
	for len(packet) >= headerSize {
		s := parse(packet)
		if uint64(s.size) > uint64(len(packet)-headerSize) {
			return all
		}
		s.payload = packet[headerSize : headerSize+s.size]
		all = append(all, s)
		packet = packet[headerSize+s.size:]
	}
	return all
}

// verdict is what Input must make of a packet.
type verdict struct {
	taken []segment // took effect
	err   error
}

// judge predicts what Input does with a packet: the segments in front of the
// first bad one take effect, the rest does not. take, if not nil, is told of each
// that does, and may say that it is a bad piece: then its payload does not.
func judge(packet []byte, conv, sndNxt uint32, pieces bool, take func(segment) error) (v verdict) {
	if len(packet) < headerSize {
		v.err = kcp.InputShort
		return v
	}
	for len(packet) >= headerSize {
		s := parse(packet)
		switch {
		case s.conv != conv:
			v.err = kcp.InputConv
		case uint64(s.size) > uint64(len(packet)-headerSize):
			v.err = kcp.InputLength
		case s.cmd < cmdPush || s.cmd > cmdWins && !(pieces && s.cmd == cmdPiece):
			v.err = kcp.InputCommand
		case ahead(s.una, sndNxt) > 0:
			v.err = kcp.InputUna
		}
		if v.err != nil {
			return v
		}
		s.payload = packet[headerSize : headerSize+s.size]
		v.taken = append(v.taken, s)
		if take != nil {
			if v.err = take(s); v.err != nil {
				return v
			}
		}
		packet = packet[headerSize+s.size:]
	}
	return v
}

// conversation is the id of the state machines.
const conversation = 0x5eed0001

// script reads bytes as a sequence of decisions. Behind its end are zeros.
type script struct{ data []byte }

func (s *script) done() bool { return len(s.data) == 0 }

func (s *script) byte() byte {
	if s.done() {
		return 0
	}
	b := s.data[0]
	s.data = s.data[1:]
	return b
}

// take returns the next n bytes, or what is left of them.
func (s *script) take(n int) []byte {
	n = min(n, len(s.data))
	b := s.data[:n]
	s.data = s.data[n:]
	return b
}

// fill writes part of an endless sequence of bytes, which key selects. Any two
// parts of it differ, so that nothing can be lost, doubled or swapped unseen.
func fill(p []byte, key, offset uint64) {
	for i := range p {
		p[i] = contentAt(key, offset+uint64(i))
	}
}

func contentAt(key, offset uint64) byte {
	x := (offset>>3 + key<<48 + 1) * 0x9e3779b97f4a7c15
	x ^= x >> 29
	x *= 0xbf58476d1ce4e5b9
	return byte(x >> (8 * (offset & 7)))
}

// differs returns the first place at which p is not as fill made it; -1 if
// there is none.
func differs(p []byte, key, offset uint64) int {
	for i, b := range p {
		if b != contentAt(key, offset+uint64(i)) {
			return i
		}
	}
	return -1
}

// seeds returns the seeds of the random scripts of a plain test: count of
// them, or the one that KCP_SEED names.
func seeds(t *testing.T, count uint64) []uint64 {
	if text := os.Getenv("KCP_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("KCP_SEED: %v", err)
		}
		return []uint64{seed}
	}
	if testing.Short() {
		count = (count + 2) / 3
	}
	all := make([]uint64, count)
	for i := range all {
		all[i] = uint64(i)
	}
	return all
}

func seedName(seed uint64) string { return "seed=" + strconv.FormatUint(seed, 10) }

// checkPacket fails unless packet, put out by the machine of conversation conv
// with the given MTU, is well formed.
func checkPacket(t testing.TB, packet []byte, conv uint32, mtu int) {
	t.Helper()
	all := segments(packet)
	size := 0
	for _, s := range all {
		if s.conv != conv || s.cmd < cmdPush || s.cmd > cmdPiece {
			t.Fatalf("put out a bad segment %+v", s)
		}
		if s.cmd != cmdPush && s.cmd != cmdPiece && (s.size != 0 || s.frg != 0) {
			t.Fatalf("put out a command with a payload or a frg: %+v", s)
		}
		size += headerSize + int(s.size)
	}
	if size != len(packet) {
		t.Fatalf("put out a packet of %d bytes with %d bytes of segments", len(packet), size)
	}
	// A segment that was queued under a larger MTU travels alone.
	if len(all) == 0 || size > mtu && len(all) > 1 {
		t.Fatalf("put out a packet of %d segments and %d bytes, MTU %d", len(all), size, mtu)
	}
}

// put writes g, with its payload, behind p. The size is that of the header, unless it is
// 0: then that of the payload.
func (g segment) put(p []byte) []byte {
	if g.size == 0 {
		g.size = uint32(len(g.payload))
	}
	p = le.AppendUint32(p, g.conv)
	p = append(p, g.cmd, g.frg)
	p = le.AppendUint16(p, g.wnd)
	for _, field := range []uint32{g.ts, g.sn, g.una, g.size} {
		p = le.AppendUint32(p, field)
	}
	return append(p, g.payload...)
}
