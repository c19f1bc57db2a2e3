package main

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"testing"
	"time"

	"github.com/arqnet/kcp/netsim"
)

// The mix takes the same course each time: the same packets leave at the same
// nanoseconds. The first 2 s see the start, losses and a probe for bandwidth.
func TestStreamsRepeat(t *testing.T) {
	for _, impl := range []string{ours, kcpOne, kcpApart} {
		var course [2]uint64
		for i := range course {
			h := fnv.New64a()
			r := &streamsRun{until: 2 * time.Second, times: make([][]float64, bulkOfMix)}
			err := frozen(func() error {
				n := netsim.NewNetwork(streamsSeed, streamsCases["bursts"].link)
				n.SetFilter(func(from, _ netip.AddrPort, packet []byte) bool {
					_ = binary.Write(h, binary.LittleEndian, []int64{int64(n.Elapsed()), int64(from.Port())})
					_, _ = h.Write(packet)
					return true
				})
				return r.runSteps(n, impl, false)
			})
			if err != nil {
				t.Fatalf("%s: %v", impl, err)
			}
			course[i] = h.Sum64()
		}
		if course[0] != course[1] {
			t.Errorf("%s: two runs differ", impl)
		}
		if testing.Short() {
			break
		}
	}
}
