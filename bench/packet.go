package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/arqnet/kcp/internal/fec"
)

// The packet suite measures what is done to one packet between the state
// machine and the socket: sealing and opening it again, framing it with its
// share of the parity, and reading it, without loss and with the loss of one
// packet in a group, which is then recovered. kcp-go returns what it recovers
// in buffers of a pool that only its sessions can give them back to; here they
// are garbage, one in a group.

const (
	packetSize   = 1400
	packetData   = 10
	packetParity = 3
	packetGroups = 64 // made in advance for the decoders
)

var (
	packetKey = bytes.Repeat([]byte{7}, 32)
	errWrong  = errors.New("a packet came out changed")
)

const metricPacket = "ns a packet"

func init() {
	register(&suite{
		name:    "packet",
		about:   "ciphers (sealed and opened) and error correction 10/3, 1400-byte packets",
		cases:   []string{"aes-gcm", "aes-cfb", "salsa20", "fec-encode", "fec-decode", "fec-decode-loss"},
		impls:   []string{ours, kcpGo},
		metrics: []metric{{metricPacket, "ns"}, {metricAllocs, "count"}},
		measure: measurePacket,
	})
}

// measurePacket repeats the work of a case for d.
func measurePacket(c, impl string, d time.Duration) (figures, error) {
	if impl != ours && impl != kcpGo {
		return nil, fmt.Errorf("no implementation %q", impl)
	}
	var work func() (packets int, err error)
	var err error
	switch c {
	case "aes-gcm", "aes-cfb", "salsa20":
		packet := make([]byte, packetSize+64)
		fill(packet)
		var step func() error
		step, err = cipherOf(impl, c, packet)
		work = func() (int, error) { return 1, step() }
	case "fec-encode":
		work, err = encodeWork(impl)
	case "fec-decode":
		work, err = decodeWork(impl, false)
	case "fec-decode-loss":
		work, err = decodeWork(impl, true)
	default:
		err = fmt.Errorf("no case %q", c)
	}
	if err != nil {
		return nil, err
	}
	return repeat(work, d)
}

// repeat measures work, after some of it to warm up.
func repeat(work func() (int, error), d time.Duration) (figures, error) {
	const batch = 256 // calls between looks at the clock
	run := func(end time.Time) (n int, err error) {
		for ok := true; ok; ok = time.Now().Before(end) {
			for range batch {
				m, err := work()
				if err != nil {
					return n, err
				}
				n += m
			}
		}
		return n, nil
	}
	if _, err := run(time.Now().Add(d / 10)); err != nil {
		return nil, err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu := cpuTime()
	n, err := run(time.Now().Add(d))
	cpu = cpuTime() - cpu
	runtime.ReadMemStats(&after)
	if err != nil {
		return nil, err
	}
	return figures{
		metricPacket: float64(cpu) / float64(n),
		metricAllocs: float64(after.Mallocs-before.Mallocs) / float64(n),
	}, nil
}

// encodeWork frames one packet a call.
func encodeWork(impl string) (func() (int, error), error) {
	encode, err := encoderOf(impl)
	if err != nil {
		return nil, err
	}
	packet := make([]byte, packetSize)
	fill(packet)
	return func() (int, error) {
		encode(packet)
		return 1, nil
	}, nil
}

// decodeWork decodes a group a call. The packets come from an encoder of
// ours, which are the same to the byte, with seqids that go on.
func decodeWork(impl string, loss bool) (func() (int, error), error) {
	encode, err := encoderOf(ours)
	if err != nil {
		return nil, err
	}
	var wire [][]byte
	for range packetGroups * packetData {
		packet := make([]byte, packetSize)
		fill(packet)
		parity := encode(packet)
		wire = append(wire, packet)
		for _, p := range parity {
			wire = append(wire, bytes.Clone(p))
		}
	}
	decode := decoderOf(impl)
	const size = packetData + packetParity
	limit := uint32(0xffffffff) / size * size
	next, at, warm := uint32(0), 0, 0
	return func() (int, error) {
		recovered := 0
		for i := range size {
			p := wire[at+i]
			binary.LittleEndian.PutUint32(p, next)
			next = (next + 1) % limit
			if loss && i == 3 {
				continue
			}
			recovered += decode(p)
		}
		at = (at + size) % len(wire)
		if warm++; loss && warm > 100 && recovered != 1 {
			return 0, errWrong
		}
		return packetData, nil
	}, nil
}

// The framing of both implementations is the same.
var _ = [1]struct{}{}[fec.HeaderSize-8]
