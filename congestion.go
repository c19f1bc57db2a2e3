package kcp

// Slow-start threshold of the reference, in segments.
const (
	ssthreshInitial = 2
	ssthreshMin     = 2
)

// CongestionControl decides how many segments may be in flight and at what
// rate they leave. The state machine calls it from within its own methods; an
// implementation belongs to one KCP and needs no locking. The vocabulary is
// that of the reference's version 2.
//
// The state passed in is valid during the call only and must not be changed.
type CongestionControl interface {
	// Init is called once, when the controller is installed.
	Init(s *CongestionState)
	// OnAck is called after an input that moved snd_una forward.
	OnAck(s *CongestionState)
	// OnFastRetransmit is called after a flush that fast-retransmitted.
	OnFastRetransmit(s *CongestionState)
	// OnTimeout is called after a flush in which a segment timed out.
	OnTimeout(s *CongestionState)
	// OnTick is called at the end of every flush.
	OnTick(s *CongestionState)
	// OnAppLimited is called after a flush that left the window unused for
	// want of data.
	OnAppLimited(s *CongestionState)
	// OnRTT is called with every round-trip sample, in milliseconds.
	OnRTT(s *CongestionState, rtt uint32)
	// OnPacketSent is called for every data segment put out.
	OnPacketSent(s *CongestionState, p SegmentInfo)
	// OnPacketAcked is called for every data segment acknowledged.
	OnPacketAcked(s *CongestionState, p SegmentInfo)
	// Window returns the congestion window in segments.
	Window() int
	// PacingRate returns the rate at which new data may leave, in bytes a
	// second, headers included. Zero means unpaced.
	PacingRate() int64
}

// CongestionState is what a congestion controller can see of the state machine.
type CongestionState struct {
	Now          uint32 // the clock, in milliseconds
	MSS          int    // payload bytes of a full segment
	InFlight     int    // snd_nxt - snd_una, in segments
	Window       int    // what the last flush was allowed to have in flight
	SendWindow   int    // local limit, in segments
	RemoteWindow int    // the peer's advertisement, in segments
	FastResend   int    // acknowledgements that trigger a fast retransmission; 0 is off
	SRTT         uint32 // smoothed round-trip time in milliseconds; 0 before the first sample
	RTO          uint32 // in milliseconds
}

// SegmentInfo describes one transmission of a data segment.
type SegmentInfo struct {
	SN            uint32
	Size          int    // payload and header, in bytes
	Sent          uint32 // clock of the last transmission
	Transmissions int
}

// referenceControl is the congestion control of the reference: slow start,
// congestion avoidance, and the window of a fresh start after a time-out.
type referenceControl struct {
	cwnd     uint32 // segments
	incr     uint32 // bytes; cwnd follows it in congestion avoidance
	ssthresh uint32 // segments
	halved   uint32 // cwnd before this flush's fast retransmission; 0: none
}

// NewReferenceControl returns the congestion control of the KCP reference
// implementation: slow start up to a threshold that begins at two segments,
// then about one segment per round trip; half after a fast retransmission,
// one segment after a time-out.
func NewReferenceControl() CongestionControl {
	return &referenceControl{ssthresh: ssthreshInitial}
}

func (c *referenceControl) Init(*CongestionState) {}

// OnAck grows the window, once for each input that acknowledged something.
func (c *referenceControl) OnAck(s *CongestionState) {
	rmt, mss := uint32(s.RemoteWindow), uint32(s.MSS)
	if c.cwnd >= rmt {
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

func (c *referenceControl) OnFastRetransmit(s *CongestionState) {
	c.halved = c.cwnd
	c.ssthresh = max(uint32(s.InFlight)/2, ssthreshMin)
	c.cwnd = c.ssthresh + uint32(s.FastResend)
	c.incr = c.cwnd * uint32(s.MSS)
}

// OnTimeout halves the window that the flush began with, also where a fast
// retransmission in the same flush has already changed it.
func (c *referenceControl) OnTimeout(s *CongestionState) {
	window := c.cwnd
	if c.halved > 0 {
		window = c.halved
	}
	c.ssthresh = max(window/2, ssthreshMin)
	c.cwnd = 1
	c.incr = uint32(s.MSS)
}

func (c *referenceControl) OnTick(s *CongestionState) {
	c.halved = 0
	if c.cwnd < 1 {
		c.cwnd = 1
		c.incr = uint32(s.MSS)
	}
}

func (c *referenceControl) OnAppLimited(*CongestionState)               {}
func (c *referenceControl) OnRTT(*CongestionState, uint32)              {}
func (c *referenceControl) OnPacketSent(*CongestionState, SegmentInfo)  {}
func (c *referenceControl) OnPacketAcked(*CongestionState, SegmentInfo) {}
func (c *referenceControl) Window() int                                 { return int(c.cwnd) }
func (c *referenceControl) PacingRate() int64                           { return 0 }

// noControl keeps the books of the reference, which its state shows, and does
// not limit anything: the reference with nc=1.
type noControl struct{ referenceControl }

// NewNoControl returns a controller that leaves the window to the two ends'
// settings, as the reference does with nc=1. It floods a path whose capacity
// is below what the windows allow.
func NewNoControl() CongestionControl {
	return &noControl{referenceControl{ssthresh: ssthreshInitial}}
}

func (c *noControl) Window() int { return maxInt32 }

const maxInt32 = 1<<31 - 1

// congestionState returns the controller's view of k, brought up to date.
func (k *KCP) congestionState() *CongestionState {
	s := &k.ccState
	s.Now = uint32(k.now)
	s.MSS = k.mss
	s.InFlight = int(k.sndNxt - k.sndUna)
	s.SendWindow = int(k.sndWnd)
	s.RemoteWindow = int(k.rmtWnd)
	s.FastResend = int(k.fastResend)
	s.SRTT = uint32(k.rtt.srtt)
	s.RTO = k.rtt.rto
	return s
}

// pacer is a token bucket over the controller's pacing rate. It may be
// overdrawn by one packet, which keeps it exact for packets of any size.
type pacer struct {
	budget int64 // bytes
	last   seq   // when the budget was last filled up
	filled bool
}

// pacerBurst is how long the bucket takes to fill, in milliseconds: enough to
// ride out the granularity of timers, too little for a queue to build up.
const pacerBurst = 10

// refill adds what rate earned since the last call.
func (p *pacer) refill(now seq, rate int64) {
	limit := max(rate*pacerBurst/1000, 2*maxPacedPacket)
	elapsed := int64(now.diff(p.last))
	switch {
	case !p.filled || elapsed < 0:
		p.budget = limit
	case elapsed > pacerBurst:
		p.budget = min(limit, p.budget+rate/1000*elapsed)
	default:
		p.budget = min(limit, p.budget+rate*elapsed/1000)
	}
	p.last, p.filled = now, true
}

// maxPacedPacket is the packet size the smallest bucket is made for.
const maxPacedPacket = 1500

func (p *pacer) ready() bool { return p.budget > 0 }

func (p *pacer) spend(n int) { p.budget -= int64(n) }

// wait returns the milliseconds until the budget is positive again.
func (p *pacer) wait(rate int64) uint32 {
	if p.budget > 0 {
		return 0
	}
	return uint32(min((-p.budget)*1000/rate+1, 60000))
}
