package kcp

// Slow-start thresholds of the reference, in segments.
const (
	ssthreshInitial = 2
	ssthreshMin     = 2
)

// CongestionControl decides how many segments may be in flight and at what
// rate they leave. The vocabulary is that of version 2 of the reference.
//
// The state machine calls it from within its own methods. An implementation
// belongs to one KCP and needs no locking; it must not call back into the KCP.
// The state passed in is valid during the call only and must not be changed.
type CongestionControl interface {
	// Init is called once, when the controller is installed.
	Init(s *CongestionState)
	// OnAck is called after an input that acknowledged data. UnaMoved reports
	// whether the input moved snd_una, and Sample is what it shows of the path.
	OnAck(s *CongestionState)
	// OnFastRetransmit is called after a flush that found segments lost because
	// later ones were acknowledged (RFC 5681 §3.2, RFC 8985 §6.2).
	OnFastRetransmit(s *CongestionState)
	// OnTimeout is called after a flush in which a segment timed out. With
	// Extensions.TailProbe the first time-out of a segment does not count.
	OnTimeout(s *CongestionState)
	// OnTick is called at the end of every flush. It is called once before the
	// first flush too, as soon as both controller and clock are set.
	OnTick(s *CongestionState)
	// OnAppLimited is called after a flush that left a part of the window
	// unused for lack of data.
	OnAppLimited(s *CongestionState)
	// OnRTT is called with every round-trip sample, in milliseconds.
	OnRTT(s *CongestionState, rtt uint32)
	// OnPacketSent is called for every transmission of a data segment, but not
	// for redundant copies (Counters.Repeats).
	OnPacketSent(s *CongestionState, p SegmentInfo)
	// OnPacketAcked is called for every data segment acknowledged.
	OnPacketAcked(s *CongestionState, p SegmentInfo)
	// Window returns the congestion window in segments.
	Window() int
	// PacingRate returns the rate at which new data may leave, in bytes a
	// second, segment headers included. Zero means unpaced.
	PacingRate() int64
}

// RecoveryControl is what a CongestionControl may implement in addition, to
// undo its response to a spurious retransmission (RFC 3522, RFC 4015).
type RecoveryControl interface {
	// OnRecovered is called before OnAck, when all segments that were
	// retransmitted are acknowledged. spurious says that no retransmission was
	// necessary: the first transmission of each segment had arrived. The
	// response to the losses can then be undone (RFC 4015). It is called only
	// with Extensions.EarlyRetransmit.
	OnRecovered(s *CongestionState, spurious bool)
}

// burstControl is what a controller may implement in addition, if bursts are
// allowed on its path.
type burstControl interface {
	burst() int // by how many bytes the budget of pacing may be overdrawn
}

// byteWindow is implemented by controllers that count in bytes. Their Window, in
// segments of the mean size, is too large when segments become larger: after a
// few small messages, the window of ten full segments would be hundreds.
type byteWindow interface {
	windowBytes() float64
}

// CongestionState is what a congestion controller sees of the state machine.
type CongestionState struct {
	// Now is the clock in milliseconds; it may wrap. Micros is the clock in
	// microseconds, from an arbitrary start; after SetClock and Update it
	// counts whole milliseconds.
	Now    uint32
	Micros int64

	MSS          int    // payload bytes of a full segment
	InFlight     int    // snd_nxt - snd_una, in segments
	Outstanding  int    // segments sent and not acknowledged
	FlightBytes  int64  // their bytes, segment headers included
	Window       int    // segments that the last flush allowed in flight
	SendWindow   int    // local limit, in segments
	RemoteWindow int    // window advertised by the peer, in segments
	FastResend   int    // later acknowledgements that make a segment lost; 0: off
	SRTT         uint32 // smoothed round-trip time in milliseconds; 0: no sample yet
	RTO          uint32 // retransmission time-out in milliseconds

	// Totals since New, in bytes, segment headers included. Lost counts the
	// transmissions declared lost, at that time.
	Delivered int64 // acknowledged
	Lost      int64 // declared lost

	// DeliveredAt is when data was last acknowledged, or sent with nothing in
	// flight. LostSent is when the newest of the transmissions declared lost
	// had left. Both are times as Micros; 0: not yet.
	DeliveredAt int64
	LostSent    int64

	// Valid in OnAck and OnRecovered.
	UnaMoved bool       // the input moved snd_una forward
	Sample   RateSample // rate sample of the input
}

// SegmentInfo describes the last transmission of a data segment.
type SegmentInfo struct {
	SN            uint32 // its number; a retransmission has the same one
	Size          int    // payload and header, in bytes
	Sent          uint32 // when it was transmitted, as CongestionState.Now
	SentMicros    int64  // the same as CongestionState.Micros
	LostMicros    int64  // in OnPacketSent: SentMicros of the one before, if lost; else 0
	Transmissions int    // so far, this one included
}

// referenceControl is the congestion control of the reference: slow start,
// congestion avoidance, and a window of one segment after a time-out.
type referenceControl struct {
	cwnd     uint32 // segments
	incr     uint32 // bytes; cwnd follows it in congestion avoidance
	ssthresh uint32 // segments
	halved   uint32 // cwnd before the fast retransmission of this flush; 0: none

	undo checkpoint[referenceControl] // from before the recent losses
}

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

// NewReferenceControl returns the congestion control of the KCP reference
// implementation. Slow start goes up to a threshold that begins at two
// segments; then the window grows by about one segment per round trip. A fast
// retransmission halves it, and a time-out sets it to one segment.
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

// OnRecovered restores the window if nothing had been lost.
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

// OnTimeout sets the threshold to half the window that the flush began with. A
// fast retransmission in the same flush may have changed the window already.
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

// noControl updates the window of the reference but never limits sending: the
// reference with nc=1.
type noControl struct{ referenceControl }

// NewNoControl returns a controller that leaves the window to the settings of
// the two ends, as the reference does with nc=1. It floods a path whose
// capacity is below what the windows allow.
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
