package kcp

import (
	"errors"
)

// Defaults of the reference.
const (
	defaultMTU       = 1400
	minMTU           = 50
	defaultSndWnd    = 32
	minRcvWnd        = 128 // holds the longest message
	defaultInterval  = 100
	minInterval      = 10
	maxInterval      = 5000
	defaultDeadLink  = 20
	defaultFastLimit = 5
	maxFragments     = 127

	// clockJump is how far, in milliseconds, the clock may be from the next
	// flush before the schedule is started anew.
	clockJump = 10000
)

// Errors of the state machine. Those of Input say why the rest of a packet was
// not taken; segments in front of the offending one have taken effect.
var (
	ErrPacketShort     = errors.New("kcp: packet shorter than a segment header")
	ErrConv            = errors.New("kcp: segment of another conversation")
	ErrSegmentLength   = errors.New("kcp: segment longer than its packet")
	ErrCommand         = errors.New("kcp: unknown segment command")
	ErrForgedUna       = errors.New("kcp: acknowledges what was never sent")
	ErrPiece           = errors.New("kcp: piece that fits into no segment")
	ErrMessageTooLarge = errors.New("kcp: message needs more fragments than the peer can hold")
	ErrNoData          = errors.New("kcp: nothing to receive")
	ErrPartialMessage  = errors.New("kcp: message not yet complete")
)

// KCP is the protocol's state machine. It is driven only by calls and holds no
// clock, socket, lock or goroutine: give it packets with Input, data with
// Send, the time with Update, and it hands packets to the output function.
// With the settings that New gives it, it behaves as the reference
// implementation does, byte for byte; the few deliberate differences are
// listed in WIRE.md.
//
// All times are milliseconds on a uint32 clock that may wrap and must not run
// backwards. A KCP is not safe for concurrent use, and the output function
// must not call its methods.
type KCP struct {
	conv uint32

	// Settings.
	mtu, mss     int
	messageMSS   int // mss before the path turned out to take less; see segmentSize
	sndWnd       uint32
	rcvWnd       uint32
	nodelay      NoDelay
	interval     uint32
	fastResend   uint32 // 0 is off
	fastLimit    uint32 // 0 is none
	deadLink     uint32
	stream       bool
	ext          Extensions
	trace        *Trace
	cc           CongestionControl
	ccState      *CongestionState // nil while there is nothing to control
	pace         pacer
	output       func(packet []byte)
	packetBuffer func(n int) []byte // where the next packet is assembled; nil: packet

	// outputInPlace, if not nil, is given packets of one full segment in the segment's
	// own buffer, which has headroom bytes in front of the payload, instead of
	// output a copy. It keeps the buffer until it calls releaseSegment.
	outputInPlace func(s *sendSegment)
	headroom      int
	signals       []signal          // to be sent with the next flush
	onSignal      func(signal) bool // takes signals; true: una and wnd of the segment do not count

	// Clock.
	now       seq
	micros    int64 // the same in microseconds
	fineClock bool  // micros is exact
	tsFlush   seq   // next scheduled flush
	updated   bool
	dead      bool

	// Sending: [sndUna, sndNxt) is in flight, [sndNxt, sndEnd) waits.
	sndUna   seq
	sndNxt   seq
	sndEnd   seq
	inFlight int // unacknowledged among those in flight
	sndBytes int // payload held in snd
	snd      sendRing

	flightBytes int64 // of inFlight, headers included
	rate        rateSampler
	timeouts    timeouts
	loss        lossDetector
	recovery    recovery
	blackHole   blackHoleDetector
	redundancy  redundancyBudget
	rtt         rttEstimator
	lastAlive   transmission // oldest in flight at the last good packet

	// The peer's window, and probing it while it is closed.
	rmtWnd      uint32
	rmtWndMax   uint32 // the largest it has advertised; 0 before the first
	rmtUna      seq    // with the advertisement taken last
	unaWentBack bool   // the latest segment had a lower una than one before
	probe       uint8
	tsProbe     seq
	probeWait   uint32

	// Receiving: [rcvNxt-rcvQueued, rcvNxt) is in order, beyond it early.
	rcvNxt          seq
	rcvQueued       uint32
	rcvPartial      uint32 // segments of the incomplete message at the queue's end
	rcvVoid         uint32 // places in the queue that are empty, none of them at its head
	rcvEarly        int
	rcvHeld         int // bytes of the buffers in rcv, and of assembly
	pressure        memoryPressure
	peerUnvalidated bool // the peer's address is not proven
	frugal          bool // segments may be too far ahead to be held
	rcv             recvRing
	assembly        assembly
	readInto        []byte // where payload may go as it comes, for a reader that waits
	readDirect      bool   // some has
	acks            []ackItem
	ackRepeats      ackRepeater
	ackPolicy       ackPolicy
	tsRecent        seq // ts of the newest PUSH that came by itself
	hasRecent       bool

	validation *addressValidation // nil: the peer's address is validated

	// Packet under construction and scratch space.
	packet  []byte
	scratch []*sendSegment
	buffers buffers // of what is sent

	rcvBuffers buffers // of what is received
	counters   Counters
}

// New returns a state machine for conversation conv, which must be the same at
// both ends, with the reference's default settings. output is called with each
// packet to be sent; the packet is valid during the call only.
func New(conv uint32, output func(packet []byte)) *KCP {
	k := &KCP{
		conv:      conv,
		output:    output,
		mtu:       defaultMTU,
		mss:       defaultMTU - headerSize,
		sndWnd:    defaultSndWnd,
		rcvWnd:    minRcvWnd,
		rmtWnd:    minRcvWnd,
		nodelay:   NoDelayOff,
		interval:  defaultInterval,
		tsFlush:   defaultInterval,
		fastLimit: defaultFastLimit,
		deadLink:  defaultDeadLink,
		rtt:       rttEstimator{rto: rtoInitial, minRTO: rtoMin},
	}
	k.SetCongestionControl(nil)
	return k
}

// Conv returns the conversation id.
func (k *KCP) Conv() uint32 { return k.conv }

// Dead reports whether a segment has been transmitted as often as the
// dead-link limit says. The state machine goes on all the same.
func (k *KCP) Dead() bool { return k.dead }

// Update tells the time and flushes when the interval has passed since the
// last scheduled flush. Call it at the time that Check returns, or every 10 to
// 100 ms.
func (k *KCP) Update(now uint32) {
	k.setClock(seq(now))
	if !k.updated {
		k.updated = true
		k.tsFlush = k.now
	}
	late := k.now.diff(k.tsFlush)
	if late >= clockJump || late < -clockJump {
		k.tsFlush = k.now
		late = 0
	}
	if late < 0 {
		return
	}
	k.tsFlush += seq(k.interval)
	if !k.now.before(k.tsFlush) {
		k.tsFlush = k.now + seq(k.interval)
	}
	k.Flush()
}

// SetClock tells the time without flushing. Together with Flush and NextFlush
// it drives a KCP by events: set the clock, give it input or data, flush. The
// interval then only bounds the RTO. It is not part of the reference.
func (k *KCP) SetClock(now uint32) {
	k.setClock(seq(now))
	k.started()
}

// SetClockMicros is SetClock with a clock of microseconds. What goes by
// milliseconds still does, on the wire above all; congestion control sees the
// finer time and paces and measures more exactly. A driver uses one or the
// other throughout.
func (k *KCP) SetClockMicros(now uint64) {
	k.now, k.micros, k.fineClock = seq(now/1000), int64(now), true
	k.started()
}

func (k *KCP) setClock(now seq) {
	k.micros += int64(now.diff(k.now)) * 1000
	k.now = now
}

// started lets the first SetClock take the place of the first Update.
func (k *KCP) started() {
	if !k.updated {
		k.updated = true
		k.tsFlush = k.now
		k.cc.OnTick(k.congestionState())
	}
}

// NextFlush returns when the next Flush has something to do, if nothing is put
// in before: at once where acknowledgements or data can leave, else when a
// segment times out, the pacing budget allows more, or a closed window is to
// be probed. It is false when the conversation is idle. Unlike Check, it does
// not ask to be called at every interval.
func (k *KCP) NextFlush() (at uint32, ok bool) {
	if k.probe != 0 || k.loss.suspects.head != nil {
		return uint32(k.now), true
	}
	next, ok := k.timeouts.next()
	earlier := func(t seq) {
		if !ok || t.before(next) {
			next, ok = t, true
		}
	}
	if len(k.acks) > 0 {
		earlier(k.ackTime())
	}
	if k.recovery.inOutage && k.inFlight > 0 {
		earlier(k.recovery.probeAt)
	}
	if k.loss.due.head != nil {
		earlier(k.now + seq(k.resendWait()))
	}
	if k.sndNxt != k.sndEnd {
		switch {
		case k.rmtWnd == 0 && k.probeWait == 0:
			earlier(k.now)
		case k.rmtWnd == 0:
			earlier(k.tsProbe)
		case k.mayAdmit(k.sendWindow()) && k.mayBegin(k.snd.at(k.sndNxt), 0):
			earlier(k.now + seq(k.pacingDelay()))
		}
	}
	return uint32(next), ok
}

// pacingDelay returns the milliseconds until a new segment may leave.
func (k *KCP) pacingDelay() uint32 {
	rate := k.cc.PacingRate()
	if rate <= 0 {
		return 0
	}
	return k.wholeMillis(k.pace.wait(k.micros, rate))
}

// wholeMillis returns the whole milliseconds of the clock in which a wait of so
// many microseconds from now is over.
func (k *KCP) wholeMillis(wait int64) uint32 {
	if wait == 0 {
		return 0
	}
	return uint32((k.micros%1000 + wait + 999) / 1000)
}

// Check returns the time at which Update should be called next, if neither
// Input nor Send is called before: now where something is due already, and at
// most one interval from now.
func (k *KCP) Check(now uint32) uint32 {
	current, flush := seq(now), k.tsFlush
	if !k.updated {
		return now
	}
	late := current.diff(flush)
	if late >= clockJump || late < -clockJump || late >= 0 {
		return now
	}
	wait := uint32(-late)
	if at, ok := k.timeouts.next(); ok {
		d := at.diff(current)
		if d <= 0 {
			return now
		}
		wait = min(wait, uint32(d))
	}
	return now + min(wait, k.interval)
}

// Compact gives spare memory back. It is worth calling when a conversation
// has gone idle.
func (k *KCP) Compact() {
	k.buffers, k.rcvBuffers = buffers{}, buffers{}
	k.timeouts.spare = nil
	k.packet, k.scratch = nil, nil
	if k.sndEnd == k.sndUna {
		k.snd = sendRing{}
		k.ccState, k.rate.rateInput = nil, nil
	}
	if k.rcvQueued == 0 && k.rcvEarly == 0 {
		k.rcv = recvRing{}
	}
	if len(k.acks) == 0 {
		k.acks = nil
	}
	if len(k.signals) == 0 {
		k.signals = nil
	}
	k.expirePieces()
	if k.rcvEarly == 0 {
		k.ackRepeats.items = nil
	}
}

// segmentSize returns the payload of the segments that n bytes are cut into.
// A message that had few enough segments before the MTU has shrunk still has.
func (k *KCP) segmentSize(n int) int {
	if k.stream || k.messageMSS <= k.mss || n <= k.fragmentLimit()*k.mss {
		return k.mss
	}
	return k.messageMSS
}
