package kcp

import (
	"github.com/arqnet/kcp/internal/netpath"
	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/streams"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/stats"
	"github.com/arqnet/kcp/trace"
)

// sessionPort is what the session layer may ask of the state machine beyond the
// public API. Session files call its methods, exported ones, and methods of the parts
// that it returns, and touch no field; TestSessionsUseThePort enforces that. Nothing is
// called through the interface, so it costs nothing.
type sessionPort interface {
	// Set-up, before the first packet.
	setConv(uint32)
	configure(machineSettings)

	// Incoming packets.
	feed(packet []byte, a arrival) (rtt int64, err error)
	counts() *stats.Counters
	position() position

	// The receive side.
	receiver() *receiver
	recvBytes([]byte) int
	windowReopened() bool
	receiveWindow() (size, used int, largest bool)
	doubleWindow()
	closeReceive()
	limitWindow(segments uint32, shut, tell bool)

	// The send side.
	sender() *sender
	seedRTT(rtt uint32)
	load() sendLoad
	messageLimit() (bytes, segments int)
	discardSend()
	refuse()
	setOutage(on bool)
	probePath()
	releaseSegment(*sendSegment)
	answerHeader() wire.Header

	// Signals.
	signalQueue() *wire.Queue
	sendSignals()

	// Streams.
	enable(features)
	newBuffer(n int) []byte
	segmentBuffers() *buffers
	micros() int64

	// Messages that may be given up.
	sendMessage(p []byte, t *streams.Tag) error
	segmentsGivenUp() int
	dropSpent() bool

	// The cap of the rate.
	capRate(rate int64, overhead int)
	rateCap() *recovery.Shaper

	// Address validation.
	limitUnvalidated(overhead int, legacy bool)
	validation() *netpath.AmplificationLimit
	validateAddress()

	// Path MTU discovery.
	packetSize() int
	resizePackets(mtu int)
	watchedSizes() netpath.Watched
	blackHole() *netpath.BlackHole
	packetsRefused(size int)

	tracing() *trace.Hooks
	snapshot() machineStats
}

var _ sessionPort = (*KCP)(nil)

// hooks are the functions that the machine calls. In a machine that stands
// alone all but output are zero. No hook may call a method that changes the
// machine, with two exceptions. outputInPlace may call releaseSegment. host.onSignal
// may add to the signalQueue, and use the validation, and call validateAddress,
// enable and resizePackets, and tell blackHole of a probe.
type hooks struct {
	output       func(packet []byte) // sends a packet, which is valid only during the call
	packetBuffer func(n int) []byte  // returns space for the next packet; nil: the machine has its own
	host         machineHost         // takes signals and stream segments, and queues the latter; nil: none

	// outputInPlace sends a packet of one full segment from the segment's own
	// buffer, which has headroom bytes in front of the payload, so that no copy
	// is made for output. The packet is the headroom and the payload. It keeps the
	// buffer until it calls releaseSegment.
	outputInPlace func(s *sendSegment, packet []byte)
	headroom      int32 // bytes

	frugal bool // data too far ahead of rcv_nxt is dropped; see sessionReach
}

// setConv changes the conversation id of a machine that has sent nothing.
func (k *KCP) setConv(conv uint32) { k.conv = conv }

// arrival is how a packet has arrived.
type arrival struct {
	pressure    memoryPressure
	unvalidated bool // the peer's address is not validated
	recovered   bool // it is one for InputRecovered
}

// feed is Input. It returns the round-trip time that the packet has shown, in
// microseconds; 0: none. Segments that were sent more than once show none.
func (k *KCP) feed(packet []byte, a arrival) (rtt int64, err error) {
	k.rcv.pressure, k.rcv.peerUnvalidated = a.pressure, a.unvalidated
	err = k.input(packet, a.recovered)
	if k.snd.rate.RateSample != nil {
		rtt = k.snd.rate.Sample.RTT
	}
	return rtt, err
}

// position is how far both directions are.
type position struct {
	received  seq  // rcv_nxt
	acked     seq  // snd_una
	sent      seq  // snd_nxt
	end       seq  // after the last segment, if no stream's leaves before those that wait
	regressed bool // the newest packet has a lower una than one before it
}

// position returns how far both directions are.
func (k *KCP) position() position {
	return position{k.rcv.nxt, k.snd.una, k.snd.nxt, k.snd.nxt + seq(k.snd.queue.n), k.peer.unaWentBack}
}

// timeoutDue reports whether the time-out of a segment has come at a time.
func (d *sender) timeoutDue(at seq) bool {
	g := d.timeouts.first
	return g != nil && at.Diff(g.at) >= 0
}

// counts returns the counters, which the caller must not change.
func (k *KCP) counts() *stats.Counters { return &k.counters }

// windowReopened reports whether the next flush sends the peer a window update.
func (k *KCP) windowReopened() bool { return k.peer.probe&sendWins != 0 }

// writeCostPerSegment is what a segment counts in a write buffer besides its payload, in
// bytes.
const writeCostPerSegment = 64

// sendLoad is what waits to be sent, or is in flight.
type sendLoad struct {
	segments, bytes             int // their payload
	unsent                      int // segments among them that wait for the first time
	streamSegments, streamBytes int // streams' among them
	used                        int // bytes of the write buffer, without what streams hold
	memory                      int // bytes, with what is kept for reuse
	window                      int // the send window in segments
	payload                     int // bytes of a full segment of Send
}

// load returns what waits or is in flight.
func (k *KCP) load() sendLoad {
	l := sendLoad{
		segments: k.snd.inFlight + k.snd.queue.n, bytes: k.snd.bytes, unsent: k.snd.queue.n,
		memory: int(k.out.held)*memoryGrain + k.out.buffers.Held() + k.snd.ring.Len()*sendPlaceBytes,
		window: int(k.cfg.sndWnd), payload: k.cfg.mss,
	}
	l.used = l.bytes + l.segments*writeCostPerSegment
	if k.rare != nil {
		l.streamSegments, l.streamBytes = k.rare.streamSegments, k.rare.streamBytes
		l.used -= l.streamBytes + l.streamSegments*writeCostPerSegment
		if k.rare.own.numbers && k.snd.validation == nil {
			l.payload -= streams.OwnHeader
		}
	}
	return l
}

// features are what needs a peer that has it too.
type features uint8

const (
	featureReplies  features = 1 << iota // Extensions.AwaitReplies
	featurePieces                        // Extensions.SendPieces
	featureStreams                       // the host queues stream segments
	featureOrder                         // Send queues segments with an SSN
	featureCopies                        // segments carry copies
	featureInformed                      // the peer has this end's INFO, so it knows whether they do
)

// enable switches features on, as the peer has them.
func (k *KCP) enable(f features) {
	k.cfg.ext.AwaitReplies = k.cfg.ext.AwaitReplies || f&featureReplies != 0
	k.cfg.ext.SendPieces = k.cfg.ext.SendPieces || f&featurePieces != 0
	k.rcv.copies = k.rcv.copies || f&featureCopies != 0
	r := &k.snd.redundancy
	r.Informed = r.Informed || f&featureInformed != 0
	r.Short = k.rcv.copies && r.Informed
	if f&featureStreams != 0 {
		k.rareMachine().streaming = true
	}
	if f&featureOrder != 0 {
		k.rareMachine().own.numbers = true
	}
}

// micros returns the machine's clock in microseconds.
func (k *KCP) micros() int64 { return k.clock.micros }

// answerHeader returns the header of segments that are sent outside a flush.
func (k *KCP) answerHeader() wire.Header {
	return wire.Header{Conv: k.conv, Wnd: k.wndUnused(), Una: k.rcv.nxt}
}

// signalQueue returns the signals that wait.
func (k *KCP) signalQueue() *wire.Queue { return &k.signals }

// packetSize returns the size of the largest packet that the machine sends, in
// bytes.
func (k *KCP) packetSize() int { return k.cfg.mtu }

// resizePackets sets the MTU to what the path takes (DPLPMTUD, RFC 8899).
func (k *KCP) resizePackets(mtu int) {
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

// watchedSizes returns what the large packets have shown that are watched.
func (k *KCP) watchedSizes() netpath.Watched {
	return k.snd.blackHole.Watched(uint32(k.clock.now), k.snd.rtt.rto, int32(k.cfg.mtu), k.cfg.ext.SendPieces)
}

// setOutage has an outage limit the machine, or no longer.
func (k *KCP) setOutage(on bool) {
	k.limit.Outage = on
	if on {
		k.limit.By = stats.LimitOutage // so that noteLimit looks
	}
	k.noteLimit(k.sendWindow())
}

// tracing returns the hooks that SetTrace has installed; nil: none.
func (k *KCP) tracing() *trace.Hooks {
	if k.cfg.trace == nil {
		return nil
	}
	return k.cfg.trace.hooks
}

// machineStats is the part of ConnStats that comes from the machine.
type machineStats struct {
	srtt, rttvar, rto int32 // milliseconds
	inFlight, queued  int   // segments
	readable          int   // bytes received and not read
	window            int   // the peer's, in segments
	unread            int   // by how much it was larger, in segments
	congestionWindow  int   // segments
	sendWindow        int   // of all the least, in segments
	limit             stats.Limit
}

// snapshot returns the current figures.
func (k *KCP) snapshot() machineStats {
	return machineStats{
		srtt: k.snd.rtt.srtt, rttvar: k.snd.rtt.rttvar, rto: int32(k.snd.rtt.rto),
		inFlight: k.snd.inFlight, queued: k.snd.queue.n,
		readable: k.rcv.bytes,
		window:   int(k.peer.wnd), unread: int(k.peer.wndMax - k.peer.wnd),
		congestionWindow: k.snd.cc.Window(), sendWindow: int(k.sendWindow()), limit: k.limit.By,
	}
}
