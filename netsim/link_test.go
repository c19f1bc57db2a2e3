package netsim

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// requireBalanced checks that every packet is accounted for, when none is
// underway.
func requireBalanced(t *testing.T, s LinkStats) {
	t.Helper()
	in, out := s.Sent, s.Delivered
	in.merge(s.Duplicated)
	for _, tally := range []Tally{s.Lost, s.Overflow, s.TooBig, s.Filtered, s.Unreachable} {
		out.merge(tally)
	}
	require.Equal(t, in, out, "%+v", s)
}

// number is a packet that names its place in the order.
func number(i, size int) []byte {
	b := make([]byte, size)
	b[0], b[1], b[2], b[3] = byte(i>>24), byte(i>>16), byte(i>>8), byte(i)
	return b
}

func numberOf(b []byte) int {
	return int(b[0])<<24 | int(b[1])<<16 | int(b[2])<<8 | int(b[3])
}

func TestLinkPerfect(t *testing.T) {
	l := NewLink(LinkConfig{}, 1)
	packet := []byte("packet")
	got := l.Send(time.Second, packet)
	require.Equal(t, []Delivery{{At: time.Second, Data: []byte("packet")}}, got)
	packet[0] = 'X'
	require.Equal(t, "packet", string(got[0].Data), "Data shares memory with the packet")
	require.Equal(t, LinkStats{Sent: Tally{1, 6}, Delivered: Tally{1, 6}}, l.Stats())
}

func TestLinkConfigValidate(t *testing.T) {
	require.NoError(t, LinkConfig{}.Validate())
	require.NoError(t, LinkConfig{Loss: 1, Duplicate: 1, Reorder: 1, Corrupt: 1, Delay: 1, Jitter: 1, Rate: 1, Queue: 1, MTU: 1}.Validate())
	for field, cfg := range map[string]LinkConfig{
		"Delay": {Delay: -1}, "Jitter": {Jitter: -1}, "Loss": {Loss: 1.1}, "Duplicate": {Duplicate: -0.1},
		"Reorder": {Reorder: math.NaN()}, "Corrupt": {Corrupt: math.Inf(1)}, "Rate": {Rate: -1},
		"Queue": {Queue: -1}, "MTU": {MTU: -1},
	} {
		require.ErrorContains(t, cfg.Validate(), "LinkConfig."+field)
		require.Panics(t, func() { NewLink(cfg, 1) }, field)
		require.Panics(t, func() { NewLink(LinkConfig{}, 1).SetConfig(cfg) }, field)
	}
}

func TestLinkRateDoesNotDrift(t *testing.T) {
	l := NewLink(LinkConfig{Rate: 3_000_000_000}, 1)
	for i := range 30_000 {
		want := time.Duration((i + 1) * 100 / 3) // ns: 33⅓ for each
		require.Equal(t, want, l.Send(0, make([]byte, 100))[0].At)
	}
}

func TestLinkLossUsesTheRate(t *testing.T) {
	l := NewLink(LinkConfig{Rate: 1000, Loss: 1}, 1)
	require.Empty(t, l.Send(0, make([]byte, 1000)))
	l.SetConfig(LinkConfig{Rate: 1000})
	require.Equal(t, 2*time.Second, l.Send(0, make([]byte, 1000))[0].At)
}

func TestLinkSetConfigKeepsOrder(t *testing.T) {
	l := NewLink(LinkConfig{Delay: time.Second, Jitter: time.Second, Reorder: 1}, 1)
	latest := time.Duration(0)
	for range 10 {
		latest = max(latest, l.Send(0, nil)[0].At)
	}
	l.SetConfig(LinkConfig{})
	require.Equal(t, latest, l.Send(0, nil)[0].At, "overtook a packet sent under the old configuration")
	require.Equal(t, 3*time.Second, l.Send(3*time.Second, nil)[0].At)
}

func TestLinkTimeDoesNotRunBackwards(t *testing.T) {
	l := NewLink(LinkConfig{Reorder: 1}, 1) // not held up by the order
	l.Send(time.Second, nil)
	require.Equal(t, time.Second, l.Send(0, nil)[0].At)
}

func ExampleLink() {
	// A link of 1 MB/s whose queue takes 3 kB.
	l := NewLink(LinkConfig{Rate: 1_000_000, Queue: 3000, Delay: 20 * time.Millisecond}, 1)
	for i := range 5 {
		for _, d := range l.Send(0, make([]byte, 1000)) {
			fmt.Printf("packet %d arrives after %v, of which it waited %v\n", i, d.At, d.Queued)
		}
	}
	fmt.Println("dropped:", l.Stats().Overflow.Packets)
	// Output:
	// packet 0 arrives after 21ms, of which it waited 0s
	// packet 1 arrives after 22ms, of which it waited 1ms
	// packet 2 arrives after 23ms, of which it waited 2ms
	// packet 3 arrives after 24ms, of which it waited 3ms
	// dropped: 1
}
