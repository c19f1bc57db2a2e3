// Package congestion has the congestion controllers of package kcp, and the
// interface for others. A controller decides how much of a session's data
// may be in flight and at what rate it leaves. Config.CongestionControl and
// KCP.SetCongestionControl of package kcp install one.
//
// A controller that counts packets implements Control. What BBR does besides, any
// controller can do: undo a response (Undoer), count in bytes (ByteWindow), allow
// bursts (Burster) and show its state to traces (StateNamer).
package congestion

// HeaderSize is the size of the header of a segment, in bytes. Sizes in this
// package include it, except for State.MSS.
const HeaderSize = 24

// Control decides how many segments may be in flight and at what
// rate they leave. The vocabulary is as in version 2 of the reference.
//
// The state machine calls it from within its own methods. An implementation
// belongs to one KCP and needs no locking; it must not call back into the KCP.
// The state passed in is valid during the call only and must not be changed.
type Control interface {
	// Init is called once, when the controller is installed.
	Init(s *State)
	// OnAck is called after an input that acknowledged data. UnaMoved reports
	// whether the input moved snd_una, and Sample is what it shows of the path.
	OnAck(s *State)
	// OnFastRetransmit is called after a flush that found segments lost because
	// later ones were acknowledged (RFC 5681 §3.2, RFC 8985 §6.2).
	OnFastRetransmit(s *State)
	// OnTimeout is called after a flush in which a segment timed out. With
	// Extensions.TailProbe the first time-out of a segment does not count.
	OnTimeout(s *State)
	// OnTick is called at the end of every flush. It is called once before the
	// first flush too, as soon as both controller and clock are set.
	OnTick(s *State)
	// OnAppLimited is called after a flush that left a part of the window
	// unused for lack of data.
	OnAppLimited(s *State)
	// OnRTT is called with every round-trip sample, in milliseconds.
	OnRTT(s *State, rtt uint32)
	// OnPacketSent is called for every transmission of a data segment, but not
	// for redundant copies (Counters.Repeats).
	OnPacketSent(s *State, p Segment)
	// OnPacketAcked is called for every data segment acknowledged.
	OnPacketAcked(s *State, p Segment)
	// Window returns the congestion window in segments.
	Window() int
	// PacingRate returns the rate at which new data may leave, in bytes a
	// second, segment headers included. Zero means unpaced.
	PacingRate() int64
}

// Undoer is what a Control may implement in addition, to
// undo its response to a spurious retransmission (RFC 3522, RFC 4015).
type Undoer interface {
	// OnRecovered is called before OnAck, when all segments that were
	// retransmitted are acknowledged. spurious says that no retransmission was
	// necessary: the first transmission of each segment had arrived. The
	// response to the losses can then be undone (RFC 4015). It is called only
	// with Extensions.EarlyRetransmit.
	OnRecovered(s *State, spurious bool)
}

// Burster is what a Control may implement in addition, if bursts are allowed on
// its path.
type Burster interface {
	// Burst returns how many bytes may leave at once beyond what PacingRate
	// allows, to be paid back by a pause. If it is negative, bursts are lost:
	// retransmissions wait too, and little is made up for after a pause.
	Burst() int
}

// ByteWindow is what a Control may implement in addition, if it counts in bytes. Its
// Window, in segments of the mean size, would be too large when segments become
// larger: after a few small messages, the window of ten full segments is hundreds.
type ByteWindow interface {
	// WindowBytes returns the congestion window in bytes, segment headers included.
	// It is used in place of Window.
	WindowBytes() float64
}

// StateNamer is what a Control may implement in addition, to show
// its state to Trace.CongestionState.
type StateNamer interface {
	// State returns the name of the present state. It should be one of few
	// constants.
	State() string
}

// State is what a congestion controller sees of the state machine.
type State struct {
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
	UnaMoved bool   // the input moved snd_una forward
	Sample   Sample // rate sample of the input
}

// Segment describes the last transmission of a data segment.
type Segment struct {
	SN            uint32 // its number; a retransmission has the same one
	Size          int    // payload and header, in bytes
	Sent          uint32 // when it was transmitted, as State.Now
	SentMicros    int64  // the same as State.Micros
	LostMicros    int64  // in OnPacketSent: SentMicros of the one before, if lost; else 0
	Transmissions int    // so far, this one included
}

// Sample is what one input shows of the path: the rate at which data
// arrives (draft-cheng-iccrg-delivery-rate-estimation). It spans the time from
// the transmission of the newest segment acknowledged until now. In that time
// as much was delivered as the total has grown. Bytes include segment headers.
type Sample struct {
	Acked          int64 // bytes that the input acknowledged
	RTT            int64 // microseconds, of the newest segment sent only once; 0: none
	Delivered      int64 // bytes delivered in Interval
	Interval       int64 // microseconds; 0: no sample
	PriorDelivered int64 // State.Delivered when the newest segment left
	InFlight       int64 // FlightBytes when it left, itself included
	Lost           int64 // bytes found lost since it left
	AppLimited     bool  // the sender was short of data when it left
}

// Rate returns the delivery rate in bytes a second; 0 without a sample.
func (r *Sample) Rate() int64 {
	if r.Interval <= 0 {
		return 0
	}
	return int64(float64(r.Delivered) * 1e6 / float64(r.Interval))
}
