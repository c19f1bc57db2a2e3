package fuzz_test

import "github.com/arqnet/kcp/congestion"

// paced is a controller that leaves the window alone and limits the rate.
type paced struct {
	congestion.Control
	rate int64
}

func (p paced) PacingRate() int64 { return p.rate }

// narrow is a controller with a small window that does not move.
type narrow struct {
	congestion.Control
	window int
}

func (n narrow) Window() int { return n.window }

// slowestPace is the least rate of any controller here, in bytes a second.
const slowestPace = 200

// newControl makes one of a few congestion controllers.
func newControl(choice byte) congestion.Control {
	switch choice % 8 {
	case 0:
		return congestion.NewBBR()
	case 1:
		return congestion.NewCubic()
	case 2:
		return congestion.NewNone()
	case 3:
		return narrow{congestion.NewNone(), 1 + int(choice>>3)}
	case 4:
		return paced{congestion.NewNone(), 1 << (17 + choice>>4)}
	case 5:
		return paced{congestion.NewReference(), 5000 * int64(1+choice>>3)}
	case 6:
		rate := int64(slowestPace) << (choice >> 5)
		return paced{congestion.NewNone(), rate}
	default:
		return congestion.NewReference()
	}
}
