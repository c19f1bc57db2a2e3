package fuzz_test

import kcp "github.com/arqnet/kcp"

// paced is a controller that leaves the window alone and limits the rate.
type paced struct {
	kcp.CongestionControl
	rate int64
}

func (p paced) PacingRate() int64 { return p.rate }

// narrow is a controller with a small window that does not move.
type narrow struct {
	kcp.CongestionControl
	window int
}

func (n narrow) Window() int { return n.window }

// slowestPace is the least rate of any controller here, in bytes a second.
const slowestPace = 200

// newControl makes one of a few congestion controllers.
func newControl(choice byte) kcp.CongestionControl {
	switch choice % 8 {
	case 0:
		return kcp.NewBBR()
	case 1:
		return kcp.NewCubic()
	case 2:
		return kcp.NewNoControl()
	case 3:
		return narrow{kcp.NewNoControl(), 1 + int(choice>>3)}
	case 4:
		return paced{kcp.NewNoControl(), 1 << (17 + choice>>4)}
	case 5:
		return paced{kcp.NewReferenceControl(), 5000 * int64(1+choice>>3)}
	case 6:
		rate := int64(slowestPace) << (choice >> 5)
		return paced{kcp.NewNoControl(), rate}
	default:
		return kcp.NewReferenceControl()
	}
}
