package machine

import (
	"fmt"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/trace"
)

// machineConfig holds the settings that KCP's setters change.
type machineConfig struct {
	mtu        int    // bytes of the largest packet
	mss        int    // bytes of payload in a full segment
	messageMSS int    // mss before the path MTU shrank; 0: it has not
	sndWnd     uint32 // segments
	rcvWnd     uint32 // segments
	nodelay    NoDelay
	stream     bool   // data is a stream of bytes, not of messages
	interval   uint32 // milliseconds between two scheduled flushes
	fastResend uint32 // acknowledgements of later segments that mark one lost; 0: off
	fastLimit  uint32 // transmissions up to which a segment is fast-retransmitted; 0: any number
	deadLink   uint32 // transmissions of one segment after which the link is dead
	ext        Extensions
	trace      *tracer // nil: none
}

// Settings are settings of a session, all of which are valid. What is zero leaves
// a setting as it is.
type Settings struct {
	MTU                         int // bytes; messages are cut for it from then on
	SendWindow, ReceiveWindow   int // segments
	NoDelay                     NoDelay
	MinRTO                      int // milliseconds; in place of NoDelay's
	Interval                    int // milliseconds
	FastResend, FastResendLimit int // negative: 0
	DeadLink                    int // transmissions
	Data                        DataMode
	Extensions                  Extensions
	MaxRTO                      int // milliseconds; in place of that of Extensions
}

// DataMode is what Send queues.
type DataMode uint8

const (
	_ DataMode = iota
	MessageData
	StreamData
)

// Configure changes settings, at any time.
func (k *KCP) Configure(s Settings) {
	must := func(err error) {
		if err != nil {
			panic(err) // cannot happen: the session has checked them
		}
	}
	if s.MTU != 0 {
		must(k.SetMTU(s.MTU))
		k.cfg.messageMSS = 0
		k.snd.blackHole.Restart()
	}
	if s.SendWindow != 0 || s.ReceiveWindow != 0 {
		full := k.receiveFull()
		if s.SendWindow == 0 {
			s.SendWindow = int(k.cfg.sndWnd)
		}
		if s.ReceiveWindow == 0 {
			s.ReceiveWindow = int(k.cfg.rcvWnd)
		}
		must(k.SetWindow(s.SendWindow, s.ReceiveWindow))
		if full {
			k.afterRecv(full) // it may be open now
		}
	}
	if s.Interval != 0 {
		must(k.SetInterval(uint32(s.Interval)))
	}
	if s.NoDelay != NoDelayDefault {
		k.SetNoDelay(s.NoDelay)
	}
	if s.MinRTO != 0 {
		must(k.SetMinRTO(uint32(s.MinRTO)))
	}
	if s.FastResend != 0 {
		k.cfg.fastResend = uint32(max(s.FastResend, 0))
	}
	if s.FastResendLimit != 0 {
		k.cfg.fastLimit = uint32(max(s.FastResendLimit, 0))
	}
	if s.DeadLink != 0 {
		k.cfg.deadLink = uint32(s.DeadLink)
	}
	if s.Data != 0 {
		k.cfg.stream = s.Data == StreamData
		if tail := k.snd.queue.tail; tail != nil {
			tail.closed = true // it may be the end of a message
		}
	}
	if s.Extensions != (Extensions{}) {
		k.cfg.ext = s.Extensions
	}
	if s.MaxRTO != 0 {
		k.cfg.ext.bound(uint32(s.MaxRTO))
	}
}

// NoDelay is kcp.NoDelay, which says what its values mean.
type NoDelay uint8

const (
	NoDelayDefault NoDelay = iota
	NoDelayOff
	NoDelayOn
	NoDelayTurbo
)

// Extensions are behaviours beyond the reference. The zero value is the reference's
// behaviour: all are off. Sessions have those of SessionExtensions, and so has a
// machine after Extend.
type Extensions struct {
	// StrictRTT takes round-trip samples only from ACKs of segments in flight. The
	// reference takes one from every ACK, duplicates and forgeries included.
	StrictRTT bool
	// FreshFastAck resets the count of acknowledgements against a segment when it times
	// out, so that one loss is not repaired twice.
	FreshFastAck bool
	// SendOrder counts an acknowledgement against every segment last transmitted before
	// the acknowledged one (RACK, RFC 8985). The reference goes by sequence numbers and
	// milliseconds, so it suspects a retransmission because of what left just before it.
	SendOrder bool
	// PostponeTimeouts gives a segment more time if the newest acknowledgement took
	// longer than its time-out allows, while nothing sent after it was acknowledged.
	PostponeTimeouts bool
	// FreshWindow ignores the window of a segment that is older than another one that has
	// arrived, as its una shows. The reference takes the window of whatever arrives last.
	FreshWindow bool
	// LimitToPeerWindow makes Send refuse a message with more fragments than the largest
	// window that the peer has advertised.
	LimitToPeerWindow bool
	// PipeWindow compares only unacknowledged segments with the congestion window; the
	// reference counts everything from the oldest one on. Retransmissions beyond the
	// window or the pacing rate leave as ACKs arrive: two for each segment acknowledged,
	// and 4 per round trip. The reference sends all at once.
	PipeWindow bool
	// RepeatAcks sends an ACK twice, the second time with the next ones, while the peer
	// retransmits segments that have arrived: its ACKs were lost.
	RepeatAcks bool
	// SparseAcks leaves out ACKs of segments that the una of the same packet covers,
	// except the newest, as kcp-go does. It has no effect with ThinAcks.
	SparseAcks bool
	// MaxRTO bounds the backed-off time-out of a segment, in milliseconds, but not below
	// the connection's RTO. Zero means 2^30.
	MaxRTO uint32
	// MaxProbeWait bounds the interval of zero-window probes, in milliseconds (RFC 9293
	// §3.8.6.1). Zero means the reference's 120000.
	MaxProbeWait uint32
	// ProbeWait is the time until the first zero-window probe, in milliseconds. Each
	// interval is 1.5 times the one before. Zero means the reference's 5000.
	ProbeWait uint32
	// ThinAcks delays the acknowledgement of in-order data until another packet leaves,
	// for a quarter of a round trip and 25 ms at most (delayed ACK, RFC 1122 §4.2.3.2),
	// and leaves out ACKs that una makes redundant. The reference answers every segment.
	ThinAcks bool
	// AwaitReplies makes a delayed ACK wait for the next data of the application, up to
	// 100 ms, while that follows what has arrived so soon and nothing is lost. frg of
	// ACKs announces the wait. Both ends need it; sessions switch it on once the peer has
	// announced it. It has no effect without ThinAcks.
	AwaitReplies bool
	// EarlyRetransmit retransmits a segment a quarter of a round trip after the first
	// acknowledgement of a later one (reordering window, RFC 8985 §6.2), or later if
	// retransmissions turn out to be spurious (RFC 3522). It counts every ACK of a
	// packet; the reference counts one.
	EarlyRetransmit bool
	// TailProbe answers the first time-out of segments that were sent together with one
	// packet (tail loss probe, RFC 8985 §7). Congestion control learns only of a second
	// time-out.
	TailProbe bool
	// OutageProbe is the interval of probes, in milliseconds, while segments time out and
	// nothing arrives. The first packet from the peer then causes everything that was in
	// flight to be retransmitted, and resets the back-off. Zero means no probes.
	OutageProbe uint32
	// EarlyRepair sends redundant copies of retransmissions: of small segments with the
	// next packet, of large ones if new data cannot leave. While there are losses it
	// sends copies of other small segments, for as many bytes as ThinAcks has saved.
	EarlyRepair bool
	// Redundancy is how many bytes of redundant copies of recent small segments packets
	// that leave anyway may carry, in percent of their own bytes.
	Redundancy uint32
	// TakePieces accepts segments that arrive in pieces. SendPieces sends in pieces what
	// is larger than the MTU, or may be too large for the path. Only extended peers take
	// them.
	TakePieces, SendPieces bool
}

// zeroWindowProbeWait is when sessions first probe a window of zero, and how often an
// outage, in milliseconds (WIRE.md §6).
const zeroWindowProbeWait = 200

// SessionExtensions returns the extensions of sessions. longest bounds the time-outs of
// segments, in milliseconds; redundancy is Extensions.Redundancy.
func SessionExtensions(longest, redundancy uint32) Extensions {
	e := Extensions{
		StrictRTT:         true,
		FreshFastAck:      true,
		FreshWindow:       true,
		PipeWindow:        true,
		PostponeTimeouts:  true,
		SendOrder:         true,
		RepeatAcks:        true,
		LimitToPeerWindow: true,
		SparseAcks:        true,
		ThinAcks:          true,
		EarlyRetransmit:   true,
		TailProbe:         true,
		EarlyRepair:       true,
		Redundancy:        redundancy,
		TakePieces:        true,
	}
	e.bound(longest)
	return e
}

// bound sets the longest waits for the peer, in milliseconds.
func (e *Extensions) bound(longest uint32) {
	e.MaxRTO, e.MaxProbeWait = longest, longest
	e.ProbeWait = min(zeroWindowProbeWait, longest)
	e.OutageProbe = e.ProbeWait
}

// Extend is SetExtensions for a bare machine, with what needs nothing of the peer.
func (k *KCP) Extend() { k.cfg.ext = SessionExtensions(sessionMaxRTO, 0) }

// sessionMaxRTO bounds the backed-off time-outs of segments, in milliseconds.
const sessionMaxRTO = 5000

// SetMTU sets the largest packet in bytes: 50 to 65535, default 1400. Segments already
// queued keep their size. Outside that range it returns an error, and changes nothing.
func (k *KCP) SetMTU(mtu int) error {
	if mtu < MinMTU || mtu > 65535 {
		return fmt.Errorf("kcp: MTU %d is not in [%d, 65535]", mtu, MinMTU)
	}
	k.cfg.mtu = mtu
	k.cfg.mss = mtu - wire.HeaderSize
	if k.rare != nil && k.rare.capped != nil {
		k.rare.capped.SetPacket(mtu)
	}
	k.cfg.trace.mtu(mtu)
	return nil
}

// SetWindow sets the send and the receive window in segments, 1 to 1048576 each, default
// 32 and 128. A receive window below 128 is raised to 128, as in the reference; above
// 65535 it is advertised as 65535. Outside that range it changes nothing and returns an
// error.
func (k *KCP) SetWindow(send, receive int) error {
	const limit = 1 << 20
	if send < 1 || send > limit || receive < 1 || receive > limit {
		return fmt.Errorf("kcp: windows %d and %d are not both in [1, %d]", send, receive, limit)
	}
	k.cfg.sndWnd = uint32(send)
	k.cfg.rcvWnd = uint32(max(receive, MinRcvWnd))
	return nil
}

// SetNoDelay sets the bounds and the back-off of time-outs, and the minimum RTO: default
// NoDelayOff.
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

// SetInterval sets the flush interval in milliseconds, 10 to 5000, default 100, which is
// also the least variance term of the RTO. Outside that range it returns an error, and
// changes nothing.
func (k *KCP) SetInterval(ms uint32) error {
	if ms < MinInterval || ms > MaxInterval {
		return fmt.Errorf("kcp: interval %d ms is not in [%d, %d]", ms, MinInterval, MaxInterval)
	}
	k.cfg.interval = ms
	return nil
}

// SetFastResend sets how many acknowledgements of later transmissions cause a fast
// retransmission (RFC 5681 §3.2). Zero, the default, turns that off.
func (k *KCP) SetFastResend(acks uint32) { k.setFastLimits(acks, k.cfg.fastLimit) }

// SetFastResendLimit sets up to how many transmissions a segment is fast-retransmitted:
// default 5; zero means no limit.
func (k *KCP) SetFastResendLimit(transmissions uint32) {
	k.setFastLimits(k.cfg.fastResend, transmissions)
}

// SetMinRTO sets the minimum retransmission time-out in milliseconds: 1 to 60000.
// Outside that range it returns an error, and changes nothing. SetNoDelay sets it too,
// so call SetMinRTO after it.
func (k *KCP) SetMinRTO(ms uint32) error {
	if ms < 1 || ms > MaxRTO {
		return fmt.Errorf("kcp: minimum RTO %d ms is not in [1, %d]", ms, MaxRTO)
	}
	k.snd.rtt.minRTO = ms
	return nil
}

// SetDeadLink sets the transmissions of one segment from which Dead is true: default 20.
func (k *KCP) SetDeadLink(transmissions uint32) { k.cfg.deadLink = transmissions }

// SetStream chooses between messages (false, the default) and a byte stream.
func (k *KCP) SetStream(on bool) { k.cfg.stream = on }

// SetExtensions replaces the extensions in use.
func (k *KCP) SetExtensions(e Extensions) { k.cfg.ext = e }

// SetTrace installs hooks for logging and tools; nil removes them.
func (k *KCP) SetTrace(t *trace.Hooks) { k.cfg.trace = newTracer(t) }

// SetCongestionControl installs and initializes c; nil: congestion.NewReference. A change
// between congestion.NewReference and NewNone keeps the window, as one of nc does in the
// reference.
func (k *KCP) SetCongestionControl(c congestion.Control) {
	if c == nil {
		c = congestion.NewReference()
	}
	if f, ok := c.(interface{ Follow(congestion.Control) }); ok {
		f.Follow(k.snd.cc)
	}
	k.snd.cc = c
	k.snd.cc.Init(k.congestionState())
	if k.clock.started {
		k.snd.cc.OnTick(k.congestionState()) // slow start has no window before that
	}
}
