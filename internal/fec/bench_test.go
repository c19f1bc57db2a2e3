package fec

import (
	"fmt"
	"testing"
)

// The time is per KCP packet of 1400 bytes; parity comes on top of that.

func BenchmarkEncode(b *testing.B) {
	for _, r := range benchRatios {
		b.Run(r.String(), func(b *testing.B) {
			e, err := NewEncoder(r.data, r.parity)
			if err != nil {
				b.Fatal(err)
			}
			packet := make([]byte, HeaderSize+1400)
			b.SetBytes(1400)
			b.ReportAllocs()
			for b.Loop() {
				e.Encode(packet, 0)
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, r := range benchRatios {
		for losses := range 3 {
			if losses > r.parity {
				break
			}
			b.Run(fmt.Sprintf("%v-lost%d", r, losses), func(b *testing.B) {
				benchmarkDecode(b, r, losses)
			})
		}
	}
}

func benchmarkDecode(b *testing.B, r ratio, losses int) {
	d := NewDecoder()
	stream := newStream(r, 1400)
	recovered := 0
	count := func([]byte) { recovered++ }
	group := func(losses int) {
		for i, packet := range stream.group() {
			if i >= losses {
				_, _, _ = d.Decode(packet, 0, count)
			}
		}
	}
	for range maxGroups + 10 {
		group(0)
	}
	group(losses)
	if d.code == nil || d.doubt != nil || recovered != losses {
		b.Fatal("the decoder is not in its steady state")
	}
	b.SetBytes(1400)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N/r.data + 1 {
		group(losses)
	}
}

var benchRatios = []ratio{{1, 1}, {3, 1}, {10, 3}, {20, 10}}

// stream makes the groups of a sender over and over, with little more work than
// to write seqids.
type stream struct {
	ratio
	next    uint32
	packets [][]byte
}

// newStream returns a stream of data shards with KCP packets of n bytes.
func newStream(r ratio, n int) *stream {
	e, err := NewEncoder(r.data, r.parity)
	if err != nil {
		panic(err)
	}
	s := &stream{ratio: r}
	for i := range r.data {
		packet := make([]byte, HeaderSize+n)
		for j := range packet[HeaderSize:] {
			packet[HeaderSize+j] = byte(i*j + j>>3)
		}
		parity := e.Encode(packet, 0)
		s.packets = append(s.packets, packet)
		s.packets = append(s.packets, parity...)
	}
	return s
}

// group returns the packets of the next group, valid until the next call.
func (s *stream) group() [][]byte {
	for _, p := range s.packets {
		putHeader(p, s.next, packetType(p))
		s.next = (s.next + 1) % s.limit()
	}
	return s.packets
}
