package congestion

import "math"

// Slow-start thresholds of the reference, in segments.
const (
	ssthreshInitial = 2
	ssthreshMin     = 2
)

// referenceControl is the congestion control of the reference: slow start,
// congestion avoidance, and a window of one segment after a time-out.
type referenceControl struct {
	cwnd     uint32 // segments
	incr     uint32 // bytes; cwnd follows it in congestion avoidance
	ssthresh uint32 // segments
	halved   uint32 // cwnd before the fast retransmission of this flush; 0: none

	undo checkpoint[referenceControl] // from before the recent losses
}

// NewReference returns the congestion control of the KCP reference
// implementation. Slow start goes up to a threshold that begins at two
// segments; then the window grows by about one segment per round trip. A fast
// retransmission halves it, and a time-out sets it to one segment. In place of a
// controller of NewNone it goes on from the window of that, and the other way around.
func NewReference() Control {
	return &referenceControl{ssthresh: ssthreshInitial}
}

func (c *referenceControl) Init(*State) {}

// Follow goes on from the window of a controller of NewNone: the reference keeps its
// window when nc changes.
func (c *referenceControl) Follow(before Control) {
	if b, ok := before.(*noControl); ok {
		c.cwnd, c.incr, c.ssthresh = b.cwnd, b.incr, b.ssthresh
	}
}

// OnAck grows the window, once for each input that moved snd_una.
func (c *referenceControl) OnAck(s *State) {
	rmt, mss := uint32(s.RemoteWindow), uint32(s.MSS)
	if !s.UnaMoved || c.cwnd >= rmt {
		return
	}
	if c.cwnd < c.ssthresh {
		c.cwnd++
		c.incr += mss
	} else {
		c.incr = max(c.incr, mss)
		c.incr += mss*mss/c.incr + mss/16
		if (c.cwnd+1)*mss <= c.incr {
			c.cwnd = (c.incr + mss - 1) / mss
		}
	}
	if c.cwnd > rmt {
		c.cwnd = rmt
		c.incr = rmt * mss
	}
}

// OnRecovered restores the window if nothing had been lost.
func (c *referenceControl) OnRecovered(_ *State, spurious bool) {
	if u := c.undo.state; c.undo.taken && spurious && c.cwnd < u.cwnd {
		c.cwnd, c.incr, c.ssthresh = u.cwnd, u.incr, max(c.ssthresh, u.ssthresh)
	}
	c.undo.taken = false
}

func (c *referenceControl) OnFastRetransmit(s *State) {
	c.undo.take(c)
	c.halved = c.cwnd
	c.ssthresh = max(uint32(s.InFlight)/2, ssthreshMin)
	c.cwnd = c.ssthresh + uint32(s.FastResend)
	c.incr = c.cwnd * uint32(s.MSS)
}

// OnTimeout sets the threshold to half the window that the flush began with. A
// fast retransmission in the same flush may have changed the window already.
func (c *referenceControl) OnTimeout(s *State) {
	c.undo.take(c)
	window := c.cwnd
	if c.halved > 0 {
		window = c.halved
	}
	c.ssthresh = max(window/2, ssthreshMin)
	c.cwnd = 1
	c.incr = uint32(s.MSS)
}

func (c *referenceControl) OnTick(s *State) {
	c.halved = 0
	if c.cwnd < 1 {
		c.cwnd = 1
		c.incr = uint32(s.MSS)
	}
}

func (c *referenceControl) OnAppLimited(*State)           {}
func (c *referenceControl) OnRTT(*State, uint32)          {}
func (c *referenceControl) OnPacketSent(*State, Segment)  {}
func (c *referenceControl) OnPacketAcked(*State, Segment) {}
func (c *referenceControl) Window() int                   { return int(c.cwnd) }
func (c *referenceControl) PacingRate() int64             { return 0 }

// noControl updates the window of the reference but never limits sending: the
// reference with nc=1.
type noControl struct{ referenceControl }

// NewNone returns a controller that leaves the window to the settings of
// the two ends, as the reference does with nc=1. It floods a path whose
// capacity is below what the windows allow.
func NewNone() Control {
	return &noControl{referenceControl{ssthresh: ssthreshInitial}}
}

func (c *noControl) Window() int { return math.MaxInt32 }

// Follow goes on from the window of a controller of NewReference.
func (c *noControl) Follow(before Control) {
	if b, ok := before.(*referenceControl); ok {
		c.cwnd, c.incr, c.ssthresh = b.cwnd, b.incr, b.ssthresh
	}
}

// State returns "slow_start" or "congestion_avoidance".
func (c *referenceControl) State() string {
	if c.cwnd < c.ssthresh {
		return "slow_start"
	}
	return "congestion_avoidance"
}

// State returns "unlimited".
func (c *noControl) State() string { return "unlimited" }

// checkpoint holds the state that a controller had before a response that may
// have to be undone (RFC 4015).
type checkpoint[T any] struct {
	taken bool
	state *T // nil before the first checkpoint
}

// take saves the present state, unless a saved one is still in force.
func (p *checkpoint[T]) take(now *T) {
	if p.taken {
		return
	}
	if p.state == nil {
		p.state = new(T)
	}
	*p.state, p.taken = *now, true
}

// Variables returns the state under the names of the reference: cwnd and ssthresh in
// segments, incr in bytes.
func (c *referenceControl) Variables() (cwnd, ssthresh, incr uint32) {
	return c.cwnd, c.ssthresh, c.incr
}
