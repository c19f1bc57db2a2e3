package ends

import (
	"math/rand/v2"

	"github.com/arqnet/kcp"
	"github.com/arqnet/kcp/congestion"
)

// RandomConfig draws settings of one end: those that both need not have in common, but
// for times.
func RandomConfig(r *rand.Rand) kcp.Config {
	x := []kcp.Config{{}, kcp.LowLatency()}[r.IntN(2)]
	x.MTU = 200 + r.IntN(1200)
	x.SendWindow, x.ReceiveWindow = 64+r.IntN(500), 64+r.IntN(500)
	x.Limits.MaxStreams = 1 + r.IntN(20)
	x.StreamReceiveBuffer = 64<<10 + r.IntN(2)*r.IntN(1<<17)
	x.StreamWriteBuffer = 4096 + r.IntN(2)*r.IntN(1<<16)
	x.WriteBuffer = 4096 + r.IntN(2)*r.IntN(1<<17)
	x.CongestionControl = []func() congestion.Control{nil, congestion.NewCubic, congestion.NewReference, congestion.NewNone}[r.IntN(4)]
	x.Tuning.NoDelay = kcp.NoDelay(r.IntN(int(kcp.NoDelayTurbo) + 1))
	x.Redundancy = []float64{0, 0, 1}[r.IntN(3)]
	if r.IntN(3) == 0 {
		x.FEC = kcp.FEC{Data: 1 + r.IntN(10), Parity: 1 + r.IntN(4)}
	}
	if r.IntN(4) == 0 {
		x.MaxRate = 20000 + r.IntN(500000)
	}
	return x
}
