package machine

import (
	"github.com/arqnet/kcp/internal/netpath"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/stats"
	"github.com/arqnet/kcp/trace"
)

// Hooks are the functions that the machine calls. In a machine that stands
// alone all but Output are zero. No hook may call a method that changes the
// machine, with two exceptions. OutputInPlace may call ReleaseSegment. Host.OnSignal
// may add to SignalQueue, and use Validation, and call ValidateAddress, Enable and
// ResizePackets, and tell BlackHole of a probe.
type Hooks struct {
	Output       func(packet []byte) // sends a packet, which is valid only during the call
	PacketBuffer func(n int) []byte  // returns space for the next packet; nil: the machine has its own
	Host         Host                // takes signals and stream segments, and queues the latter; nil: none

	// OutputInPlace sends a packet of one full segment from the segment's own
	// buffer, which has headroom bytes in front of the payload, so that no copy
	// is made for output. The packet is the headroom and the payload. It keeps the
	// buffer until it calls ReleaseSegment.
	OutputInPlace func(s *Segment, packet []byte)
	Headroom      int32 // bytes

	Frugal bool // data too far ahead of rcv_nxt is dropped; see sessionReach
}

// SetConv changes the conversation id of a machine that has sent nothing.
func (k *KCP) SetConv(conv uint32) { k.conv = conv }

// Arrival is how a packet has arrived.
type Arrival struct {
	Pressure    Pressure
	Unvalidated bool // the peer's address is not validated
	Recovered   bool // it is one for InputRecovered
}

// Feed is Input. It returns the round-trip time that the packet has shown, in
// microseconds; 0: none. Segments that were sent more than once show none.
func (k *KCP) Feed(packet []byte, a Arrival) (rtt int64, err error) {
	k.rcv.pressure, k.rcv.peerUnvalidated = a.Pressure, a.Unvalidated
	err = k.input(packet, a.Recovered)
	if k.snd.rate.RateSample != nil {
		rtt = k.snd.rate.Sample.RTT
	}
	return rtt, err
}

// Position is how far both directions are.
type Position struct {
	Received  Seq  // rcv_nxt
	Acked     Seq  // snd_una
	Sent      Seq  // snd_nxt
	End       Seq  // after the last segment, if no stream's leaves before those that wait
	Regressed bool // the newest packet has a lower una than one before it
}

// Position returns how far both directions are.
func (k *KCP) Position() Position {
	return Position{k.rcv.nxt, k.snd.una, k.snd.nxt, k.snd.nxt + Seq(k.snd.queue.n), k.peer.unaWentBack}
}

// TimeoutDue reports whether the time-out of a segment has come at a time.
func (d *Sender) TimeoutDue(at Seq) bool {
	g := d.timeouts.first
	return g != nil && at.Diff(g.at) >= 0
}

// Counts returns the counters, which the caller must not change.
func (k *KCP) Counts() *stats.Counters { return &k.counters }

// WindowReopened reports whether the next flush sends the peer a window update.
func (k *KCP) WindowReopened() bool { return k.peer.probe&sendWins != 0 }

// WriteCostPerSegment is what a segment counts in a write buffer besides its payload, in
// bytes.
const WriteCostPerSegment = 64

// Load is what waits to be sent, or is in flight.
type Load struct {
	Segments, Bytes             int // their payload
	Unsent                      int // segments among them that wait for the first time
	StreamSegments, StreamBytes int // streams' among them
	Used                        int // bytes of the write buffer, without what streams hold
	Memory                      int // bytes, with what is kept for reuse
	Window                      int // the send window in segments
	Payload                     int // bytes of a full segment of Send
}

// Load returns what waits or is in flight.
func (k *KCP) Load() Load {
	l := Load{
		Segments: k.snd.inFlight + k.snd.queue.n, Bytes: k.snd.bytes, Unsent: k.snd.queue.n,
		Memory: int(k.out.held)*memoryGrain + k.out.buffers.Held() + k.snd.ring.Len()*sendPlaceBytes,
		Window: int(k.cfg.sndWnd), Payload: k.cfg.mss,
	}
	l.Used = l.Bytes + l.Segments*WriteCostPerSegment
	if k.rare != nil {
		l.StreamSegments, l.StreamBytes = k.rare.streamSegments, k.rare.streamBytes
		l.Used -= l.StreamBytes + l.StreamSegments*WriteCostPerSegment
		if k.rare.own.numbers && k.snd.validation == nil {
			l.Payload -= streams.OwnHeader
		}
	}
	return l
}

// Features are what needs a peer that has it too.
type Features uint8

const (
	FeatureReplies  Features = 1 << iota // Extensions.AwaitReplies
	FeaturePieces                        // Extensions.SendPieces
	FeatureStreams                       // the host queues stream segments
	FeatureOrder                         // Send queues segments with an SSN
	FeatureCopies                        // segments carry copies
	FeatureInformed                      // the peer has this end's INFO, so it knows whether they do
)

// Enable switches features on, as the peer has them.
func (k *KCP) Enable(f Features) {
	k.cfg.ext.AwaitReplies = k.cfg.ext.AwaitReplies || f&FeatureReplies != 0
	k.cfg.ext.SendPieces = k.cfg.ext.SendPieces || f&FeaturePieces != 0
	k.rcv.copies = k.rcv.copies || f&FeatureCopies != 0
	r := &k.snd.redundancy
	r.Informed = r.Informed || f&FeatureInformed != 0
	r.Short = k.rcv.copies && r.Informed
	if f&FeatureStreams != 0 {
		k.rareMachine().streaming = true
	}
	if f&FeatureOrder != 0 {
		k.rareMachine().own.numbers = true
	}
}

// Micros returns the machine's clock in microseconds.
func (k *KCP) Micros() int64 { return k.clock.micros }

// AnswerHeader returns the header of segments that are sent outside a flush.
func (k *KCP) AnswerHeader() wire.Header {
	return wire.Header{Conv: k.conv, Wnd: k.wndUnused(), Una: k.rcv.nxt}
}

// SignalQueue returns the signals that wait.
func (k *KCP) SignalQueue() *wire.Queue { return &k.signals }

// PacketSize returns the size of the largest packet that the machine sends, in
// bytes.
func (k *KCP) PacketSize() int { return k.cfg.mtu }

// ResizePackets sets the MTU to what the path takes (DPLPMTUD, RFC 8899).
func (k *KCP) ResizePackets(mtu int) {
	set := k.SetMTU
	if mtu < k.cfg.mtu {
		set = k.shrinkMTU
	} else {
		k.snd.blackHole.Grown()
	}
	if err := set(mtu); err != nil {
		panic(err) // cannot happen: the session never goes below the base size
	}
}

// WatchedSizes returns what the large packets have shown that are watched.
func (k *KCP) WatchedSizes() netpath.Watched {
	return k.snd.blackHole.Watched(uint32(k.clock.now), k.snd.rtt.rto, int32(k.cfg.mtu), k.cfg.ext.SendPieces)
}

// SetOutage has an outage limit the machine, or no longer.
func (k *KCP) SetOutage(on bool) {
	k.limit.Outage = on
	if on {
		k.limit.By = stats.LimitOutage // so that noteLimit looks
	}
	k.noteLimit(k.sendWindow())
}

// Tracing returns the hooks that SetTrace has installed; nil: none.
func (k *KCP) Tracing() *trace.Hooks {
	if k.cfg.trace == nil {
		return nil
	}
	return k.cfg.trace.hooks
}

// Stats is what the statistics of a session have from the machine.
type Stats struct {
	SRTT, RTTVar, RTO int32 // milliseconds
	InFlight, Queued  int   // segments
	Readable          int   // bytes received and not read
	Window            int   // the peer's, in segments
	Unread            int   // by how much it was larger, in segments
	CongestionWindow  int   // segments
	SendWindow        int   // of all the least, in segments
	Limit             stats.Limit
}

// Snapshot returns the current figures.
func (k *KCP) Snapshot() Stats {
	return Stats{
		SRTT: k.snd.rtt.srtt, RTTVar: k.snd.rtt.rttvar, RTO: int32(k.snd.rtt.rto),
		InFlight: k.snd.inFlight, Queued: k.snd.queue.n,
		Readable: k.rcv.bytes,
		Window:   int(k.peer.wnd), Unread: int(k.peer.wndMax - k.peer.wnd),
		CongestionWindow: k.snd.cc.Window(), SendWindow: int(k.sendWindow()), Limit: k.limit.By,
	}
}
