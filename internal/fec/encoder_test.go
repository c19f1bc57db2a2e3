package fec

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNewEncoderRefuses(t *testing.T) {
	for _, r := range []ratio{{0, 0}, {0, 1}, {1, 0}, {-1, 3}, {3, -1}, {255, 2}, {128, 129}, {1, 256}, {256, 1}, {math.MaxInt, math.MaxInt}, {math.MaxInt, 1}} {
		_, err := NewEncoder(r.data, r.parity)
		require.ErrorIs(t, err, ErrRatio, "%v", r)
		require.Contains(t, err.Error(), fmt.Sprint(r.data))
	}
	for _, r := range []ratio{{1, 1}, {255, 1}, {1, 255}, {128, 128}} {
		_, err := NewEncoder(r.data, r.parity)
		require.NoError(t, err, "%v", r)
	}
}

func TestParityNeedsContinuity(t *testing.T) {
	const start = 0xffffff00 // the clock wraps in between
	for _, c := range []struct {
		gaps   []uint32 // before each of three data shards
		parity bool
	}{
		{[]uint32{1, 1, 1}, true},
		{[]uint32{1, 1, 499}, true},
		{[]uint32{1, 1, 500}, false},
		{[]uint32{1, 1, 100_000}, false},
		{[]uint32{1, 100_000, 1}, true}, // only the last gap counts
		{[]uint32{100_000, 1, 1}, true},
		{[]uint32{1, 1, 0}, true},
		{[]uint32{1, 1, 0xffffffff}, true}, // a clock that steps back a little
	} {
		e, err := NewEncoder(3, 2)
		require.NoError(t, err)
		now := uint32(start)
		for group := range uint32(2) {
			for i, gap := range c.gaps {
				now += gap
				p := make([]byte, HeaderSize+50)
				parity := e.Encode(p, now)
				require.Equal(t, 5*group+uint32(i), packetSeqID(p), "%v", c)
				if i == 2 && c.parity {
					require.Len(t, parity, 2)
					require.Equal(t, 5*group+3, packetSeqID(parity[0]))
					require.Equal(t, 5*group+4, packetSeqID(parity[1]))
				} else {
					require.Empty(t, parity, "%v", c)
				}
			}
		}
		if c.parity {
			require.Zero(t, e.Stats().Skipped)
		} else {
			require.EqualValues(t, 2, e.Stats().Skipped)
		}
	}
}

// The first packet of all is followed by parity, at whatever time it is sent.
func TestFirstPacketHasParity(t *testing.T) {
	for _, now := range []uint32{0, 1, 1 << 31, 0xffffffff} {
		e, err := NewEncoder(1, 2)
		require.NoError(t, err)
		require.Len(t, e.Encode(make([]byte, HeaderSize), now), 2)
		require.Empty(t, e.Encode(make([]byte, HeaderSize), now+maxGap))
		require.Len(t, e.Encode(make([]byte, HeaderSize), now+2*maxGap-1), 2)
		require.Empty(t, e.Encode(make([]byte, HeaderSize), now+2*maxGap+1<<31), "weeks later")
	}
}

func TestEncoderCompact(t *testing.T) {
	s := newSender(t, ratio{3, 1}, 3)
	require.Len(t, s.group(), 4)
	s.enc.Compact() // between groups nothing is lost
	require.Len(t, s.group(), 4)
	s.packet()
	s.enc.Compact()
	require.Nil(t, s.enc.stage)
	s.packet()
	require.Len(t, s.packet(), 1, "parity without the first shard")
	require.Nil(t, s.enc.stage)
	group := s.group()
	require.Len(t, group, 4)
	require.EqualValues(t, 12, packetSeqID(group[0]))
	require.EqualValues(t, 1, s.enc.Stats().Skipped)
	r := newReceiver(s)
	r.feed(s.groups(3)...)
	r.feed(without(s.group(), 1)...)
	require.Len(t, r.recovered, 1)
}

func TestLongestPacket(t *testing.T) {
	s := newSender(t, ratio{2, 1}, 4)
	r := newReceiver(s)
	r.learn()
	s.longest = maxShard - sizeSize
	for {
		group := s.group()
		if len(group[0]) > 60_000 {
			r.feed(group[1:]...)
			require.Len(t, r.recovered, 1)
			break
		}
		r.feed(group...)
	}
	long := make([]byte, HeaderSize+maxShard-sizeSize)
	s.enc.Encode(long, 0)
	require.True(t, sizeMatches(long))
	require.Panics(t, func() { s.enc.Encode(append(long, 0), 0) })
	require.Panics(t, func() { PutOOB(append(long, 0)) })
}

// capture is what a kcp-go session sent.
type capture struct {
	ratio
	packets [][]byte
	times   []uint32
}

func captures(t testing.TB) []capture {
	f, err := os.Open("testdata/kcp-go.txt")
	require.NoError(t, err)
	defer f.Close()
	var all []capture
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		var r ratio
		if n, _ := fmt.Sscanf(line, "ratio %d %d", &r.data, &r.parity); n == 2 {
			all = append(all, capture{ratio: r})
			continue
		}
		c := &all[len(all)-1]
		var ms uint32
		var packet []byte
		_, err := fmt.Sscanf(line, "%d %x", &ms, &packet)
		require.NoError(t, err)
		c.packets, c.times = append(c.packets, packet), append(c.times, ms)
	}
	require.NotEmpty(t, all)
	return all
}

// The Encoder makes of kcp-go's KCP packets what kcp-go made of them.
func TestEncodeLikeKCPGo(t *testing.T) {
	for _, c := range captures(t) {
		e, err := NewEncoder(c.data, c.parity)
		require.NoError(t, err)
		e.last, e.started = c.times[0]-1000, true // as kcp-go sees its first packet
		var parity [][]byte
		kinds := map[uint16]int{}
		for i, want := range c.packets {
			kinds[packetType(want)]++
			got := append([]byte(nil), want...)
			switch packetType(want) {
			case TypeData:
				require.Empty(t, parity, "parity that kcp-go did not send")
				clear(got[:HeaderSize])
				parity = e.Encode(got, c.times[i])
			case TypeOOB:
				clear(got[:HeaderSize])
				PutOOB(got)
			case TypeParity:
				require.NotEmpty(t, parity, "%v: kcp-go sent parity", c.ratio)
				got, parity = parity[0], parity[1:]
			}
			require.Equal(t, want, got, "%v: packet %d", c.ratio, i)
		}
		require.Positive(t, kinds[TypeParity])
		require.Positive(t, kinds[TypeOOB])
		require.Positive(t, e.Stats().Skipped)
	}
}

// The Decoder learns kcp-go's ratios and repairs its groups.
func TestDecodeKCPGo(t *testing.T) {
	for _, c := range captures(t) {
		for lost := range c.packets {
			d := NewDecoder()
			want, recovered := 0, 0
			for i, p := range c.packets {
				if i == lost {
					continue
				}
				payload, kind, err := d.Decode(append([]byte(nil), p...), 0, func(packet []byte) {
					recovered++
					require.Equal(t, c.packets[lost][HeaderSize:], packet)
				})
				require.NoError(t, err)
				if kind == KindOOB {
					require.Equal(t, "out of band", string(payload[convSize:]))
				}
			}
			if isData(c.packets[lost]) && c.hasParity(packetSeqID(c.packets[lost])) {
				want = 1
			}
			if s := d.Stats(); s.DataShards != 0 {
				require.Equal(t, c.ratio, ratio{s.DataShards, s.ParityShards})
				require.Equal(t, want, recovered, "%v without %d", c.ratio, lost)
			} else {
				// The shortest captures have so few groups with parity that
				// groups of twice the size would do as well.
				require.Less(t, len(c.packets), 20, "%v without %d", c.ratio, lost)
			}
		}
	}
}

// hasParity reports whether parity of the group of seqid was sent.
func (c *capture) hasParity(seqid uint32) bool {
	for _, p := range c.packets {
		if packetType(p) == TypeParity && packetSeqID(p)/c.size() == seqid/c.size() {
			return true
		}
	}
	return false
}

func TestIsFEC(t *testing.T) {
	for typ := range 1 << 16 {
		p := make([]byte, HeaderSize)
		binary.LittleEndian.PutUint16(p[4:], uint16(typ))
		require.Equal(t, typ >= 0xf1 && typ <= 0xf3, IsFEC(p))
		require.False(t, IsFEC(p[:HeaderSize-1]))
	}
	require.False(t, IsFEC(nil))
}
