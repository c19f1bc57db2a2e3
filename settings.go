package kcp

import (
	"fmt"
)

// machineConfig is what the setters of KCP set.
type machineConfig struct {
	mtu        int    // bytes of the largest packet
	mss        int    // bytes of payload in a full segment
	messageMSS int    // mss before the path turned out to take less; 0: it has not
	sndWnd     uint32 // segments
	rcvWnd     uint32 // segments
	nodelay    NoDelay
	interval   uint32 // milliseconds between two scheduled flushes
	fastResend uint32 // later acknowledgements that make a segment lost; 0: any number does not
	fastLimit  uint32 // fast retransmissions of one segment; 0: any number
	deadLink   uint32 // transmissions of one segment after which the link is dead
	stream     bool   // data is a stream of bytes, not of messages
	ext        Extensions
	trace      *Trace // nil: none
}

// NoDelay selects how the retransmission time-out is bounded and backed off.
// It is the reference's nodelay parameter.
type NoDelay uint8

const (
	// NoDelayDefault is NoDelayOff for a KCP, as in the reference, and
	// NoDelayOn for a session.
	NoDelayDefault NoDelay = iota
	// NoDelayOff: at least 100 ms; an eighth is added for the first
	// transmission; doubled at each time-out. The reference's nodelay 0.
	NoDelayOff
	// NoDelayOn: at least 30 ms; times 1.5 at each time-out of a segment. The
	// reference's nodelay 1.
	NoDelayOn
	// NoDelayTurbo: at least 30 ms; grows by half of the present time-out of
	// the connection at each time-out of a segment. The reference's nodelay 2.
	NoDelayTurbo
)

// Extensions are behaviours beyond the reference. All are off in the zero
// value, which is the reference.
type Extensions struct {
	// StrictRTT takes round-trip samples only from an ACK of a segment that
	// was in flight until its packet came. The reference takes one from every ACK, duplicates and
	// forgeries included.
	StrictRTT bool
	// FreshFastAck forgets the acknowledgements counted against a segment
	// when it times out, so that one loss is not repaired twice.
	FreshFastAck bool
	// SendOrder counts an acknowledgement against every segment whose last
	// transmission was before the acknowledged one, as in RACK (RFC 8985) and
	// QUIC. The reference compares milliseconds, so that a repetition is
	// suspected because of what left just before it, and only with segments
	// further on in the sequence.
	SendOrder bool
	// PostponeTimeouts gives a segment more time where the newest
	// acknowledgement has taken longer than its time-out allows for, as long as
	// nothing that left after it was acknowledged.
	PostponeTimeouts bool
	// FreshWindow ignores the window of a segment that is older than another
	// that has come, as its una shows. The reference takes it from whatever
	// comes last, replayed packets included.
	FreshWindow bool
	// LimitToPeerWindow makes Send refuse a message with more fragments than
	// the largest window the peer has advertised, which it could not take.
	LimitToPeerWindow bool
	// PipeWindow holds what is unacknowledged against the congestion window,
	// so that the sender goes on while an old segment is being repaired. The
	// reference counts everything from the oldest one on. Retransmissions
	// that do not fit into the congestion window, or are more than pacing
	// allows, leave as acknowledgements come: two for each segment
	// acknowledged, and 16 a round trip. The reference's leave all at once.
	PipeWindow bool
	// RepeatAcks sends an ACK twice, the second time with the next ones, while
	// the peer repeats what has arrived: it does not know that, because ACKs
	// were lost.
	RepeatAcks bool
	// SparseAcks leaves out ACKs of segments that the una of the same packet
	// covers, except the newest, which is the peer's round-trip sample. kcp-go
	// does so too.
	SparseAcks bool
	// MaxRTO bounds the backed-off time-out of a segment, in milliseconds.
	// Zero means unbounded.
	MaxRTO uint32
	// MaxProbeWait bounds the distance of probes, in milliseconds. Zero means
	// the reference's 120000.
	MaxProbeWait uint32
	// ProbeWait is the time between the peer's window closing and the first
	// probe, in milliseconds; later probes follow at 1.5 times the distance
	// of the one before. Zero means the reference's 5000.
	ProbeWait uint32
	// ThinAcks lets the acknowledgement of what comes in order wait for a
	// packet that leaves anyway, for a quarter of a round trip and 25 ms at most,
	// and leaves out what una says too. The reference answers every segment.
	ThinAcks bool
	// EarlyRetransmit repairs a segment a quarter of a round trip after the
	// first acknowledgement of a later one, also where FastResend of them do
	// not come (RFC 8985). It counts every ACK of a packet; the reference
	// counts one. When repairs turn out to have been needless, because packets
	// overtake each other, it waits for more.
	EarlyRetransmit bool
	// TailProbe answers the first time-out of segments that were sent together
	// with one packet, and tells congestion control only of a second one
	// (RFC 8985). The reference sends all of them again.
	TailProbe bool
	// OutageProbe is the distance of probes, in milliseconds, while segments
	// time out and nothing comes from the peer. The first sign of life then has
	// everything sent again that was in flight, and back-off forgotten. Zero
	// means none.
	OutageProbe uint32
	// EarlyRepair repeats retransmissions of small segments in the next packet,
	// and, while there are losses, small segments in general, for as many bytes
	// as ThinAcks has saved.
	EarlyRepair bool
	// Redundancy is how many bytes of recent small segments may be repeated in
	// packets that leave anyway, in per cent of the bytes of those packets.
	Redundancy uint32
	// TakePieces takes segments that come in pieces, and SendPieces sends those
	// in pieces that are larger than the MTU because that has shrunk since they
	// were queued. Peers that do not take them, which is all but those of this
	// package, drop them.
	TakePieces, SendPieces bool
}

// SetMTU sets the largest packet in bytes: 50 to 65535, default 1400. Segments
// that are queued already keep their size.
func (k *KCP) SetMTU(mtu int) error {
	if mtu < minMTU || mtu > 65535 {
		return fmt.Errorf("kcp: MTU %d is not in [%d, 65535]", mtu, minMTU)
	}
	k.cfg.mtu = mtu
	k.cfg.mss = mtu - headerSize
	return nil
}

// SetWindow sets the send and the receive window in segments. Defaults: 32 and
// 128. A receive window below 128 is raised to 128, as in the reference, to
// hold the longest message; one above 65535 is advertised as 65535, which is
// what the wire can say.
func (k *KCP) SetWindow(send, receive int) error {
	const limit = 1 << 20
	if send < 1 || send > limit || receive < 1 || receive > limit {
		return fmt.Errorf("kcp: windows %d and %d are not both in [1, %d]", send, receive, limit)
	}
	k.cfg.sndWnd = uint32(send)
	k.cfg.rcvWnd = uint32(max(receive, minRcvWnd))
	return nil
}

// SetNoDelay sets how time-outs are bounded and backed off, and the minimum
// RTO that goes with it. Default: NoDelayOff.
func (k *KCP) SetNoDelay(mode NoDelay) {
	if mode == NoDelayDefault {
		mode = NoDelayOff
	}
	k.cfg.nodelay = min(mode, NoDelayTurbo)
	k.snd.rtt.minRTO = rtoMin
	if mode != NoDelayOff {
		k.snd.rtt.minRTO = rtoNoDelay
	}
}

// SetInterval sets the flush interval in milliseconds: 10 to 5000, default
// 100. It is also the least variance that an RTO allows for.
func (k *KCP) SetInterval(ms uint32) error {
	if ms < minInterval || ms > maxInterval {
		return fmt.Errorf("kcp: interval %d ms is not in [%d, %d]", ms, minInterval, maxInterval)
	}
	k.cfg.interval = ms
	return nil
}

// SetFastResend sets how many acknowledgements of later transmissions make a
// segment be sent again before its time-out. Zero, the default, is off.
func (k *KCP) SetFastResend(acks uint32) { k.cfg.fastResend = acks }

// SetFastResendLimit sets up to how many transmissions a segment is
// fast-retransmitted. Default 5; zero means without limit.
func (k *KCP) SetFastResendLimit(transmissions uint32) { k.cfg.fastLimit = transmissions }

// SetMinRTO sets the least retransmission time-out in milliseconds, up to
// 60000. SetNoDelay sets it too, so call this after it.
func (k *KCP) SetMinRTO(ms uint32) error {
	if ms < 1 || ms > rtoMax {
		return fmt.Errorf("kcp: minimum RTO %d ms is not in [1, %d]", ms, rtoMax)
	}
	k.snd.rtt.minRTO = ms
	return nil
}

// SetDeadLink sets after how many transmissions of one segment Dead reports
// true. Default 20.
func (k *KCP) SetDeadLink(transmissions uint32) { k.cfg.deadLink = transmissions }

// SetStream chooses between messages (false, the default) and a byte stream
// without boundaries, in which Send fills up segments.
func (k *KCP) SetStream(on bool) { k.cfg.stream = on }

// SetExtensions switches behaviours beyond the reference on or off.
func (k *KCP) SetExtensions(e Extensions) { k.cfg.ext = e }

// SetTrace installs hooks; nil removes them.
func (k *KCP) SetTrace(t *Trace) { k.cfg.trace = t }

// SetCongestionControl installs c; nil means NewReferenceControl.
func (k *KCP) SetCongestionControl(c CongestionControl) {
	if c == nil {
		c = NewReferenceControl()
	}
	k.snd.cc = c
	k.snd.cc.Init(k.congestionState())
	if k.clock.started {
		k.snd.cc.OnTick(k.congestionState()) // slow start has no window before that
	}
}
