package e2e

import (
	"encoding/binary"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp/netsim"
)

// flow is one of a session: the session itself, or a stream.
type flow struct {
	write func([]byte) error
	read  io.Reader
}

// lateMessages sends count messages of 200 bytes on each flow, 30 a second, and returns
// how many of each come later than the delay of the path and a bit. Each reads the
// number of its message, and they are in order.
func lateMessages(t *testing.T, count int, delay time.Duration, flows ...flow) []int {
	const size, interval = 200, time.Second / 30
	late := make([]int, len(flows))
	begin := time.Now()
	var all sync.WaitGroup
	for i, f := range flows {
		all.Go(func() {
			b := make([]byte, size)
			for n := range count {
				time.Sleep(time.Until(begin.Add(time.Duration(n)*interval + time.Duration(i)*interval/2)))
				binary.LittleEndian.PutUint64(b, uint64(n))
				binary.LittleEndian.PutUint64(b[8:], uint64(time.Since(begin)))
				if err := f.write(b); err != nil {
					t.Error(err)
					return
				}
			}
		})
		all.Go(func() {
			b := make([]byte, size)
			for n := range count {
				if _, err := io.ReadFull(f.read, b); err != nil {
					t.Error(err)
					return
				}
				if got := binary.LittleEndian.Uint64(b); got != uint64(n) {
					t.Errorf("message %d is %d", n, got)
					return
				}
				if time.Since(begin)-time.Duration(binary.LittleEndian.Uint64(b[8:])) > delay+10*time.Millisecond {
					late[i]++
				}
			}
		})
	}
	all.Wait()
	return late
}

// What the session itself writes does not wait for the losses of a stream, nor a stream
// for those of the session: at most a fifth more of their messages are late than without
// the other.
func TestSessionDoesNotWaitForStreams(t *testing.T) {
	slowUnderRace(t)
	const count = 9000
	const delay = 30 * time.Millisecond
	late := func(own, stream bool) (late []int) {
		inWorld(t, 7, netsim.LinkConfig{Delay: delay, Loss: 0.03}, func(t *testing.T, w *world) {
			var all []flow
			a, b, _ := w.pair(nil, nil)
			if stream {
				s, r := streamPair(t, a, b, nil)
				all = append(all, flow{func(b []byte) error { _, err := s.Write(b); return err }, r})
				time.Sleep(time.Second)
			}
			if own {
				all = append(all, flow{func(b []byte) error { _, err := a.Write(b); return err }, b})
			}
			late = lateMessages(t, count, delay, all...)
		})
		return late
	}
	alone, stream, both := late(true, false), late(false, true), late(true, true)
	t.Logf("of %d messages late: of the session alone %d, of a stream alone %d; of both %d of the stream, %d of the session",
		count, alone[0], stream[0], both[0], both[1])
	require.LessOrEqual(t, float64(both[0]), 1.2*float64(stream[0]))
	require.LessOrEqual(t, float64(both[1]), 1.2*float64(alone[0]))
	require.Positive(t, alone[0])
}
