// Package machine is the protocol's state machine, which package kcp exports as KCP and
// sessions stand on. It is driven by calls alone: packets, data and the time come in by
// methods, packets go out by Hooks. It has no lock, clock, goroutine, channel or socket.
package machine

import (
	"errors"

	"github.com/arqnet/kcp/internal/container"
	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/stats"
)

// Defaults and limits of the reference. MTUs are in bytes, windows in segments,
// intervals in milliseconds.
const (
	defaultMTU       = 1400
	MinMTU           = 50
	DefaultSndWnd    = 32
	MinRcvWnd        = 128 // holds the longest message
	DefaultInterval  = 100
	MinInterval      = 10
	MaxInterval      = 5000
	defaultDeadLink  = 20
	DefaultFastLimit = 5
	MaxFragments     = 127

	// clockJump is the distance, in milliseconds, between the clock and the
	// next scheduled flush from which the schedule is restarted.
	clockJump = 10000
)

// InputError says why Input has dropped the rest of a packet. Segments before the bad one
// have taken effect.
type InputError uint8

const (
	ErrPacketShort InputError = iota + 1
	ErrConv
	ErrSegmentLength
	ErrCommand
	ErrForgedUna
	ErrPiece
	ErrRequests
)

func (e InputError) Error() string {
	return "kcp: " + [...]string{
		ErrPacketShort:   "packet shorter than a segment header",
		ErrConv:          "segment of another conversation",
		ErrSegmentLength: "segment longer than its packet",
		ErrCommand:       "unknown segment command",
		ErrForgedUna:     "acknowledges data that was never sent",
		ErrPiece:         "piece does not fit into a segment",
		ErrRequests:      "too many requests at a time",
	}[e]
}

// Send returns ErrMessageTooLarge, Recv ErrNoData and ErrPartialMessage.
var (
	ErrMessageTooLarge = errors.New("kcp: message needs more than 127 fragments, or more than the peer can hold")
	ErrNoData          = errors.New("kcp: nothing to receive")
	ErrPartialMessage  = error(partialMessage{})
)

// partialMessage is ErrNoData of a message that has begun to arrive.
type partialMessage struct{}

func (partialMessage) Error() string { return "kcp: message not yet complete" }
func (partialMessage) Unwrap() error { return ErrNoData }

// Seq is a sequence number or a millisecond timestamp. Both live on a circle of
// 2^32 values. A number from the network that is half the circle away counts as
// one from the future, so it is refused, and no loop runs towards it.
type Seq = container.Serial

// KCP is the protocol's state machine, driven by calls alone. The caller passes it
// packets with Input, data with Send and the time with Update; it passes packets to the
// output function. With the settings of New it behaves as the reference implementation
// does, byte for byte, except for the few differences that WIRE.md lists. All times are
// milliseconds on a uint32 clock that may wrap and must not run backwards. A KCP is not
// safe for concurrent use, and the output function must not call its methods.
type KCP struct {
	conv     uint32
	dead     bool           // a segment reached the dead-link limit; see SetDeadLink
	limit    recovery.Limit // what kept the last flush from sending more
	cfg      machineConfig  // settings
	hooks    Hooks          // the output function, and the session's callbacks
	clock    machineClock
	snd      Sender
	peer     peerWindow
	rcv      Receiver
	out      packetBuilder
	signals  wire.Queue
	counters stats.Counters
	rare     *rareMachine // nil: all of it is zero
}

// rareMachine is what few conversations need.
type rareMachine struct {
	streaming      bool // the host queues stream segments
	streamSegments int  // of streams that are waiting or in flight
	streamBytes    int  // their payload
	own            ownFlow
	capped         *recovery.Shaper // nil: the rate is not capped
	overdue        recovery.Overdue
}

// rareMachine returns k.rare, which it makes if there is none.
func (k *KCP) rareMachine() *rareMachine {
	if k.rare == nil {
		// No segment of a stream was sent, or has arrived, before.
		k.rare = &rareMachine{own: ownFlow{next: k.snd.nxt, arrived: k.rcv.nxt}}
	}
	return k.rare
}

// machineClock is the time as the caller last set it.
type machineClock struct {
	now     Seq   // milliseconds; wraps
	micros  int64 // the same instant in microseconds; does not wrap
	fine    bool  // micros is exact, not a multiple of a millisecond
	started bool  // Update or SetClock has been called
	tsFlush Seq   // next scheduled flush, in milliseconds
}

// New returns a bare state machine, which has no socket (Dial and Listen have), for
// conversation conv with the reference's default settings. conv must be the same at
// both ends. output is called with each packet to be sent, which is valid only during
// the call. New panics if it is nil.
func New(conv uint32, output func(packet []byte)) *KCP {
	if output == nil {
		panic("kcp: New: nil output")
	}
	return NewWith(conv, Hooks{Output: output})
}

// NewWith is New with the hooks of a session.
func NewWith(conv uint32, h Hooks) *KCP {
	k := &KCP{
		conv:  conv,
		hooks: h,
		cfg: machineConfig{
			mtu:       defaultMTU,
			mss:       defaultMTU - wire.HeaderSize,
			sndWnd:    DefaultSndWnd,
			rcvWnd:    MinRcvWnd,
			nodelay:   NoDelayOff,
			interval:  DefaultInterval,
			fastLimit: DefaultFastLimit,
			deadLink:  defaultDeadLink,
		},
		clock: machineClock{tsFlush: DefaultInterval},
		snd:   Sender{rtt: rttEstimator{rto: rtoInitial, minRTO: rtoMin}},
		peer:  peerWindow{wnd: MinRcvWnd},
	}
	k.SetCongestionControl(nil)
	return k
}

// Conv returns the conversation id.
func (k *KCP) Conv() uint32 { return k.conv }

// Dead reports whether some segment has been transmitted as often as the dead-link limit
// (SetDeadLink). The state machine continues all the same.
func (k *KCP) Dead() bool { return k.dead }

// Update sets the clock to now, in milliseconds, and flushes if the interval has passed
// since the last scheduled flush. Call it when Check says, or every 10 to 100 ms.
func (k *KCP) Update(now uint32) {
	k.setClock(Seq(now))
	if !k.clock.started {
		k.clock.started = true
		k.clock.tsFlush = k.clock.now
	}
	late := k.clock.now.Diff(k.clock.tsFlush)
	if late >= clockJump || late < -clockJump {
		k.clock.tsFlush = k.clock.now
		late = 0
	}
	if late < 0 {
		return
	}
	k.clock.tsFlush += Seq(k.cfg.interval)
	if !k.clock.now.Before(k.clock.tsFlush) {
		k.clock.tsFlush = k.clock.now + Seq(k.cfg.interval)
	}
	k.Flush()
}

// SetClock sets the clock to now, in milliseconds, without flushing. Together with Flush
// and NextFlush it drives a KCP by events. The interval then only affects the RTO.
// SetClock is not part of the reference.
func (k *KCP) SetClock(now uint32) {
	k.setClock(Seq(now))
	k.started()
}

// SetClockMicros is SetClock in microseconds, with which congestion control paces and
// measures more exactly. The wire and time-outs still count milliseconds. A driver must
// use one or the other throughout.
func (k *KCP) SetClockMicros(now uint64) {
	k.clock.now, k.clock.micros, k.clock.fine = Seq(now/1000), int64(now), true
	if !k.clock.started {
		k.started()
	}
}

func (k *KCP) setClock(now Seq) {
	k.clock.micros += int64(now.Diff(k.clock.now)) * 1000
	k.clock.now = now
}

// started makes the first SetClock take the place of the first Update.
func (k *KCP) started() {
	if !k.clock.started {
		k.clock.started = true
		k.clock.tsFlush = k.clock.now
		k.snd.cc.OnTick(k.congestionState())
	}
}

// NextFlush returns when the next Flush will have something to do, if neither Input nor
// Send is called before: at once, or when a segment times out, an acknowledgement's
// delay ends, pacing allows more, or a closed window is due to be probed. ok is false if
// the conversation is idle. Call SetClock before it; docs/recipes.md has a loop.
func (k *KCP) NextFlush() (at uint32, ok bool) {
	if k.peer.probe != 0 || k.snd.loss.suspects.head != nil {
		return uint32(k.clock.now), true
	}
	next, ok := k.nextTimeout()
	earlier := func(t Seq) {
		if !ok || t.Before(next) {
			next, ok = t, true
		}
	}
	if len(k.rcv.acks) > 0 {
		earlier(k.ackTime())
	}
	if k.snd.recovery.Outage.On && k.snd.inFlight > 0 && k.snd.validation == nil {
		earlier(k.snd.recovery.Outage.ProbeAt)
	}
	if k.snd.loss.again.n+k.snd.loss.due.n > 0 {
		earlier(k.clock.now + Seq(k.resendWait()))
	}
	if k.snd.queue.n > 0 || k.rare != nil && k.streaming() && k.hooks.Host.StreamsWait().Some {
		switch {
		case k.peer.wnd == 0 && k.peer.probeWait == 0:
			earlier(k.clock.now)
		case k.peer.wnd == 0 && !k.maySend(2*wire.HeaderSize):
		case k.peer.wnd == 0:
			earlier(k.peer.tsProbe)
		case k.mayAdmit(k.sendWindow()) && (k.snd.queue.n == 0 || k.snd.validation == nil || k.mayBegin(k.snd.queue.head, 0)):
			earlier(k.clock.now + Seq(k.pacingDelay()))
		}
	}
	return uint32(next), ok
}

// nextTimeout returns when a segment times out, unless time-outs wait. ok is false if
// there is none. To an address that is not validated only the oldest is retransmitted,
// and that only if the credit suffices: otherwise a packet has to come first.
func (k *KCP) nextTimeout() (at Seq, ok bool) {
	g := k.snd.timeouts.first
	if g == nil || k.snd.loss.held {
		return 0, false
	}
	if k.snd.validation == nil {
		return g.at, true
	}
	s := k.snd.oldest()
	if s == nil || s.group == nil || !k.maySend(s.size()) {
		return 0, false
	}
	return s.group.at, true
}

// pacingDelay returns the milliseconds until pacing and the cap allow a new segment.
func (k *KCP) pacingDelay() uint32 {
	wait := k.rateWait()
	if rate := k.snd.cc.PacingRate(); rate > 0 {
		wait = max(wait, k.snd.pace.Wait(k.clock.micros, rate))
	}
	return k.wholeMillis(wait)
}

// wholeMillis returns by how many whole milliseconds the clock must advance
// until wait microseconds have passed from now.
func (k *KCP) wholeMillis(wait int64) uint32 {
	if wait == 0 {
		return 0
	}
	return uint32((k.clock.micros%1000 + wait + 999) / 1000)
}

// Check returns the time in milliseconds at which Update should be called next, if
// neither Input nor Send is called before: one interval from now at most.
func (k *KCP) Check(now uint32) uint32 {
	current, flush := Seq(now), k.clock.tsFlush
	if !k.clock.started {
		return now
	}
	late := current.Diff(flush)
	if late >= clockJump || late < -clockJump || late >= 0 {
		return now
	}
	wait := uint32(-late)
	if at, ok := k.snd.timeouts.next(); ok {
		d := at.Diff(current)
		if d <= 0 {
			return now
		}
		wait = min(wait, uint32(d))
	}
	return now + min(wait, k.cfg.interval)
}

// Compact releases spare memory, of a conversation that has become idle.
func (k *KCP) Compact() {
	k.out.buffers, k.rcv.buffers = Buffers{}, Buffers{}
	k.snd.timeouts.spare = nil
	k.out.packet, k.out.scratch = nil, nil
	if k.WaitSend() == 0 {
		k.snd.ring = sendRing{}
		k.snd.ccState, k.snd.rate.RateSample = nil, nil
	}
	if k.rcv.queue.n == 0 {
		k.rcv.queue = recvQueue{}
	}
	if k.rcv.early == 0 {
		k.rcv.ring = recvRing{}
	}
	if k.rare != nil && k.rare.own.early == 0 {
		k.rare.own.ring = recvRing{}
	}
	if len(k.rcv.acks) == 0 {
		k.rcv.acks = nil
	}
	if len(k.signals) == 0 {
		k.signals = nil
	}
	if k.expirePieces(); k.rcv.assembly != nil && k.rcv.assembly.Len() == 0 {
		k.rcv.assembly = nil
	}
	if k.rcv.early == 0 {
		k.rcv.ackRepeats = nil
	}
	k.rcv.hasRecent = false // after weeks it would not be before what follows (RFC 7323 §5.5)
}

// segmentSize returns the payload size of the segments that n bytes are split
// into. A message that is now too long for fragmentLimit segments is split at
// the size from before the MTU shrank. So a message that could be sent before
// still can; its segments leave in pieces (see pieces.go).
func (k *KCP) segmentSize(n int) int {
	if k.cfg.stream || k.cfg.messageMSS <= k.cfg.mss || n <= k.fragmentLimit()*k.cfg.mss {
		return k.cfg.mss
	}
	return k.cfg.messageMSS
}

// Counters returns a copy of the counters of k.
func (k *KCP) Counters() stats.Counters { return k.counters }

// NewSegments returns how many data segments have arrived that count: neither again
// nor beyond what is taken.
func NewSegments(s *stats.Counters) uint64 { return s.SegmentsReceived - s.Duplicates - s.OutOfWindow }

// ackTime returns when the waiting acknowledgements must leave.
func (k *KCP) ackTime() Seq {
	if k.cfg.ext.ThinAcks && !k.rcv.ackPolicy.Urgent {
		return k.rcv.ackPolicy.Due
	}
	return k.clock.now
}
