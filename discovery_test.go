package kcp

import (
	"net/netip"
	"testing"
	"time"

	"github.com/arqnet/kcp/netsim"
	"github.com/stretchr/testify/require"
)

// path is a link of so many bytes a packet, UDP payload.
func path(mtu int) netsim.LinkConfig {
	return netsim.LinkConfig{Delay: 20 * time.Millisecond, Rate: 4 << 20, Queue: 256 << 10, MTU: mtu}
}

// move sends data over c and has it compared at the other end.
func (w *world) move(from, to *Conn, seed uint64, n int) {
	w.t.Helper()
	want := content(seed, n)
	send(w.t, from, want)
	receive(w.t, to, want)
}

// A path that takes more is used, up to the limit and no further, in each
// direction by the side that sends.
func TestPathMTUIsRaised(t *testing.T) {
	for _, test := range []struct{ limit, path, least, most int }{
		{1472, 0, 1472, 1472},
		{1472, 1472, 1472, 1472},
		{9000, 1472, 1472, 1472},
		{9000, 0, 9000, 9000},
		{9000, 4000, 4000 - pmtuStep, 4000},
		{65507, 0, 65507, 65507},
		{1472, 1420, 1420 - pmtuStep, 1420},
		{1472, 1400, 1400, 1400},
		{-1, 0, 1400, 1400},
		{1000, 0, 1400, 1400},
	} {
		inWorld(t, 1, path(test.path), func(w *world) {
			a, b, _ := w.pair(&Config{MaxMTU: test.limit}, nil)
			w.move(a, b, 1, 2<<20)
			time.Sleep(time.Minute)
			w.move(a, b, 1, 1<<20)
			s := a.Stats().PathMTU
			t.Logf("%+v %+v retransmits %d", test, s, a.Stats().Retransmits())
			require.GreaterOrEqual(t, s.MTU, test.least)
			require.LessOrEqual(t, s.MTU, test.most)
			require.Zero(t, s.BlackHoles)
			require.Equal(t, PathMTUStats{MTU: 1400}, b.Stats().PathMTU)
			if test.limit > 1400 {
				require.LessOrEqual(t, s.Sent, uint64(50))
			} else {
				require.Zero(t, s.Sent)
			}
			require.NoError(t, a.Close())
		})
	}
}

// largest returns a filter that notes the largest packet from an address.
func largest(from string, size *int) func(from, to netip.AddrPort, p []byte) bool {
	host := netip.MustParseAddr(from)
	return func(from, _ netip.AddrPort, p []byte) bool {
		if from.Addr() == host {
			*size = max(*size, len(p))
		}
		return true
	}
}

// A path that swallows packets of the size that a session begins with is found
// out, and everything arrives.
func TestPathMTUBlackHole(t *testing.T) {
	for name, cfg := range map[string]Config{
		"stream": {}, "messages": {MessageMode: true}, "low latency": LowLatency(),
		"FEC": {FEC: FEC{Data: 10, Parity: 3}}, "AEAD": {Cipher: testAEAD(t)}, "jumbo": {MTU: 9000},
		"cubic": {CongestionControl: NewCubic}, "AEAD and FEC": {Cipher: testAEAD(t), FEC: FEC{Data: 3, Parity: 1}},
	} {
		for _, mtu := range []int{1200, 1272, 1390} {
			inWorld(t, 1, path(mtu), func(w *world) {
				start := time.Now()
				a, b, l := w.pair(&cfg, &cfg)
				w.move(a, b, 1, 1<<20)
				took := time.Since(start)
				s := a.Stats()
				t.Logf("%s %d: %v %+v retransmits %d", name, mtu, took, s.PathMTU, s.Retransmits())
				require.EqualValues(t, 1, s.PathMTU.BlackHoles)
				require.Less(t, took, 10*time.Second)
				w.move(b, a, 1, 1<<20)
				time.Sleep(time.Minute) // the search comes to its end
				size := 0
				w.net.SetFilter(largest("10.0.0.2", &size))
				w.move(a, b, 1, 1<<20)
				require.LessOrEqual(t, size, mtu)
				require.Greater(t, size, mtu-pmtuStep-50)
				require.Equal(t, Drops{}, b.Stats().Dropped)
				require.NoError(t, a.Close())
				require.NoError(t, b.Close())
				require.Zero(t, l.Stats().Buffered)
			})
		}
	}
}
