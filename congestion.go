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
	// OnAck is called after an input that acknowledged data; UnaMoved tells
	// whether it moved snd_una, and Sample what it says about the path.
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

// RecoveryControl is what a CongestionControl may implement beside.
type RecoveryControl interface {
	// OnRecovered is called before OnAck when all segments that were sent again
	// are acknowledged. spurious says that none of them had to be, as the first
	// transmission of each has arrived: what was done about them can be undone
	// (RFC 4015). It takes Extensions.EarlyRetransmit.
	OnRecovered(s *CongestionState, spurious bool)
}

// CongestionState is what a congestion controller can see of the state machine.
type CongestionState struct {
	Now          uint32 // the clock, in milliseconds
	Micros       int64  // the clock in microseconds, from an arbitrary start; whole milliseconds after SetClock
	MSS          int    // payload bytes of a full segment
	InFlight     int    // snd_nxt - snd_una, in segments
	Outstanding  int    // segments sent and not acknowledged
	FlightBytes  int64  // the same in bytes, headers included
	Window       int    // what the last flush was allowed to have in flight
	SendWindow   int    // local limit, in segments
	RemoteWindow int    // the peer's advertisement, in segments
	FastResend   int    // acknowledgements that trigger a fast retransmission; 0 is off
	SRTT         uint32 // smoothed round-trip time in milliseconds; 0 before the first sample
	RTO          uint32 // in milliseconds

	// Totals since New, in bytes with headers.
	Delivered int64 // acknowledged
	Lost      int64 // of transmissions taken for lost, which is when they are sent again

	// DeliveredAt is when something was last acknowledged, or sent with nothing
	// in flight; LostSent when the newest of the transmissions taken for lost
	// had left. Both as Micros, and 0 before the first.
	DeliveredAt int64
	LostSent    int64

	// In OnAck.
	UnaMoved bool       // the input moved snd_una forward
	Sample   RateSample // of the input
}

// SegmentInfo describes one transmission of a data segment.
type SegmentInfo struct {
	SN            uint32
	Size          int    // payload and header, in bytes
	Sent          uint32 // clock of the last transmission
	SentMicros    int64  // the same as CongestionState.Micros
	LostMicros    int64  // in OnPacketSent, if the transmission before is taken for lost: when that had left; else 0
	Transmissions int
}

// referenceControl is the congestion control of the reference: slow start,
// congestion avoidance, and the window of a fresh start after a time-out.
type referenceControl struct {
	cwnd     uint32 // segments
	incr     uint32 // bytes; cwnd follows it in congestion avoidance
	ssthresh uint32 // segments
	halved   uint32 // cwnd before this flush's fast retransmission; 0: none

	undo checkpoint[referenceControl] // before the losses of late
}

// checkpoint holds the state of a controller as it was before it did something
// that may have to be taken back.
type checkpoint[T any] struct {
	taken bool
	state *T // nil before the first
}

// take keeps the state of now, unless one is kept already.
func (p *checkpoint[T]) take(now *T) {
	if p.taken {
		return
	}
	if p.state == nil {
		p.state = new(T)
	}
	*p.state, p.taken = *now, true
}

// NewReferenceControl returns the congestion control of the KCP reference
// implementation: slow start up to a threshold that begins at two segments,
// then about one segment per round trip; half after a fast retransmission,
// one segment after a time-out.
func NewReferenceControl() CongestionControl {
	return &referenceControl{ssthresh: ssthreshInitial}
}

func (c *referenceControl) Init(*CongestionState) {}

// OnAck grows the window, once for each input that moved snd_una.
func (c *referenceControl) OnAck(s *CongestionState) {
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

// OnRecovered restores the window where nothing had been lost.
func (c *referenceControl) OnRecovered(_ *CongestionState, spurious bool) {
	if u := c.undo.state; c.undo.taken && spurious && c.cwnd < u.cwnd {
		c.cwnd, c.incr, c.ssthresh = u.cwnd, u.incr, max(c.ssthresh, u.ssthresh)
	}
	c.undo.taken = false
}

func (c *referenceControl) OnFastRetransmit(s *CongestionState) {
	c.undo.take(c)
	c.halved = c.cwnd
	c.ssthresh = max(uint32(s.InFlight)/2, ssthreshMin)
	c.cwnd = c.ssthresh + uint32(s.FastResend)
	c.incr = c.cwnd * uint32(s.MSS)
}

// OnTimeout halves the window that the flush began with, also where a fast
// retransmission in the same flush has already changed it.
func (c *referenceControl) OnTimeout(s *CongestionState) {
	c.undo.take(c)
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

// lastState returns the state as of the last call of congestionState.
func (k *KCP) lastState() *CongestionState {
	if k.snd.ccState == nil {
		return k.congestionState()
	}
	return k.snd.ccState
}

// congestionState returns the controller's view of k, brought up to date.
func (k *KCP) congestionState() *CongestionState {
	if k.snd.ccState == nil {
		k.snd.ccState = new(CongestionState)
	}
	s := k.snd.ccState
	s.Now = uint32(k.clock.now)
	s.MSS = k.cfg.mss
	s.Micros = k.clock.micros
	s.InFlight = int(k.snd.nxt - k.snd.una)
	s.Outstanding = k.snd.inFlight
	s.FlightBytes = k.snd.flightBytes
	s.SendWindow = int(k.cfg.sndWnd)
	s.RemoteWindow = int(k.peer.wnd)
	s.FastResend = int(k.cfg.fastResend)
	s.SRTT = uint32(k.snd.rtt.srtt)
	s.RTO = k.snd.rtt.rto
	s.Delivered, s.DeliveredAt = k.snd.rate.delivered, k.snd.rate.deliveredAt
	s.Lost, s.LostSent = k.snd.rate.lost, k.snd.rate.lostSent
	return s
}
