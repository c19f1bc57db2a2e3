package udp

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	peerA = netip.MustParseAddrPort("192.0.2.1:1000")
	peerB = netip.MustParseAddrPort("192.0.2.1:1001")
	peerC = netip.MustParseAddrPort("[2001:db8::1]:1000")
)

// to returns datagrams of the given sizes.
func to(peer netip.AddrPort, sizes ...int) []Datagram {
	batch := make([]Datagram, len(sizes))
	for i, size := range sizes {
		batch[i] = Datagram{Buf: make([]byte, size), Addr: peer}
	}
	return batch
}

func times(n, size int) []int { return slices.Repeat([]int{size}, n) }

func TestPlan(t *testing.T) {
	foreign := to(peerA, 9, 9)
	foreign[1].Peer = &net.UnixAddr{}
	for _, test := range []struct {
		name  string
		batch []Datagram
		want  []int
	}{
		{"nothing", nil, nil},
		{"one", to(peerA, 100), []int{1}},
		{"equal", to(peerA, 100, 100, 100), []int{3}},
		{"shorter end", to(peerA, 100, 100, 1), []int{3}},
		{"goes on behind a shorter one", to(peerA, 100, 50, 100), []int{2, 1}},
		{"equal ones behind a shorter one", to(peerA, 100, 50, 50, 50), []int{2, 2}},
		{"longer", to(peerA, 100, 101), []int{1, 1}},
		{"growing", to(peerA, 1, 2, 3), []int{1, 1, 1}},
		{"shrinking", to(peerA, 4, 3, 2, 1), []int{2, 2}},
		{"empty", to(peerA, 0), []int{1}},
		{"empty ones", to(peerA, 0, 0, 0), []int{1, 1, 1}},
		{"empty end", to(peerA, 10, 10, 0), []int{2, 1}},
		{"empty start", to(peerA, 0, 10, 10), []int{1, 2}},
		{"other port", append(to(peerA, 9, 9), to(peerB, 9, 9)...), []int{2, 2}},
		{"other family", append(to(peerA, 9, 9), to(peerC, 9)...), []int{2, 1}},
		{"in turn", slices.Concat(to(peerA, 9), to(peerB, 9), to(peerA, 9)), []int{1, 1, 1}},
		{"no address", to(netip.AddrPort{}, 9, 9), []int{2}},
		{"address of another kind", foreign, []int{1, 1}},
		{"as many as go", to(peerA, times(64, 10)...), []int{64}},
		{"one too many", to(peerA, times(65, 10)...), []int{64, 1}},
		{"many", to(peerA, times(200, 10)...), []int{64, 64, 64, 8}},
		{"end beyond the most", to(peerA, append(times(64, 10), 5)...), []int{64, 1}},
		{"usual size", to(peerA, times(93, 1400)...), []int{46, 46, 1}},
		{"full to the byte", to(peerA, append(times(46, 1400), 1107)...), []int{47}},
		{"a byte too much", to(peerA, append(times(46, 1400), 1108)...), []int{46, 1}},
		{"halves", to(peerA, 32753, 32753), []int{2}},
		{"halves too large", to(peerA, 32754, 32754), []int{1, 1}},
		{"oversize", to(peerA, 100, 70000, 70000, 100), []int{1, 1, 1, 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := plan(make([]int, 0, 10), test.batch, 1000, true, nil)
			if len(test.want) == 0 {
				require.Empty(t, got)
				return
			}
			require.Equal(t, test.want, got)
			require.Equal(t, times(min(len(test.batch), 10), 1),
				plan(make([]int, 0, 10), test.batch, 1000, false, nil), "without merging")
		})
	}
}

func TestPlanLimits(t *testing.T) {
	batch := to(peerA, times(300, 10)...)
	require.Equal(t, []int{64, 64}, plan(make([]int, 0, 2), batch, 256, true, nil), "space for two packets")
	require.Equal(t, []int{64, 36}, plan(make([]int, 0, 9), batch, 100, true, nil), "a hundred datagrams")
	require.Equal(t, times(7, 1), plan(make([]int, 5, 7), batch, 256, false, nil), "space is used again")
	require.Empty(t, plan(nil, batch, 256, true, nil), "no space")
	two := append(to(peerA, 9, 9), to(peerB, 9, 9)...)
	refused := func(to netip.AddrPort) bool { return to == peerA }
	require.Equal(t, []int{1, 1, 2}, plan(make([]int, 0, 4), two, 256, true, refused), "an address that refuses")
	require.Zero(t, testing.AllocsPerRun(10, func() { plan(make([]int, 0, 4), batch, 256, true, nil) }))
}

func TestCut(t *testing.T) {
	for _, test := range []struct {
		packet string
		size   int
		want   []string
	}{
		{"", 0, []string{""}},
		{"", 5, []string{""}},
		{"abcdef", 0, []string{"abcdef"}},
		{"abcdef", -1, []string{"abcdef"}},
		{"abcdef", 6, []string{"abcdef"}},
		{"abcdef", 7, []string{"abcdef"}},
		{"abcdef", 3, []string{"abc", "def"}},
		{"abcdef", 4, []string{"abcd", "ef"}},
		{"abc", 1, []string{"a", "b", "c"}},
	} {
		var got []string
		rest := []byte(test.packet)
		for {
			var d []byte
			d, rest = cut(rest, test.size)
			got = append(got, string(d))
			require.Equal(t, len(d), cap(d), "room to overwrite the next one")
			if len(rest) == 0 {
				break
			}
		}
		require.Equal(t, test.want, got, "%q in parts of %d", test.packet, test.size)
	}
}
