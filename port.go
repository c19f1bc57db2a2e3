package kcp

import (
	"github.com/arqnet/kcp/internal/pmtud"
	"github.com/arqnet/kcp/internal/streams"
)

// sessionPort is what the session layer may ask of the state machine beyond the
// public API. Session files call its methods and exported ones, and touch no
// field; TestSessionsUseThePort enforces that. Nothing is called through the
// interface, so it costs nothing.
type sessionPort interface {
	// Set-up, before the first packet.
	setHooks(hooks)
	setConv(uint32)
	limitUnvalidated(overhead int, legacy bool)

	// Incoming packets.
	setPressure(p memoryPressure, unvalidated bool)
	received(n int) bool
	underPressure() bool
	counts() *Counters

	// The receive side.
	recvNext() seq
	readable() bool
	queued() bool
	recvBytes([]byte) int
	lendReadBuffer([]byte)
	takeReadBuffer() (free int)
	windowReopened() bool
	closeReceive()
	acksPending() bool
	limitWindow(segments uint32, shut bool)
	updateWindow()
	resizeWindows(send, receive int)

	// The send side.
	sendUna() seq
	sendEnd() seq
	sendBytes() int
	sendMemory() int
	segmentPayload() int
	sendPayload() int
	longestMessage() int
	fragmentLimit() int
	sendLimit() int
	sendWindow() uint32
	closeTail()
	unaRegressed() bool
	rtoMillis() uint32
	silentTransmissions() int
	sampledRTT() int64
	discardSend()
	timeoutLate() int32
	holdTimeouts(on bool)
	probePath()
	segmentPacket(*sendSegment) []byte
	releaseSegment(*sendSegment)
	answerHeader() header

	// Signals.
	queueSignals(...signal)
	queueSignalOnce(s signal, limit int)
	lastSignal() signal
	signalsPending() bool
	sendSignals()
	replaceSignals(signal)
	dropPending()

	// Streams.
	startStreams(ordered bool)
	newBuffer(n int) []byte
	growBuffer(buf []byte, n int) []byte
	freeBuffer(buf []byte)
	streamLoad() (segments, bytes int)
	unsent() int
	micros() int64

	// Messages that may be given up.
	sendMessage(p []byte, t *streams.Tag) error
	messages(f func(t *streams.Tag))
	givenUp(t *streams.Tag) bool
	dropSpent() bool

	// The cap of the rate.
	capRate(rate int64, overhead int)
	capped() bool
	rateWait() int64
	spendRate(n int, datagram bool) bool
	borrowRate(n int)
	indebted() bool
	datagramsFirst() bool

	// Address validation.
	spendCredit(n int) bool
	overdrawn() bool
	echoed() bool
	validateAddress()
	acknowledgeAtOnce()

	// Path MTU discovery.
	packetSize() int
	resizePackets(mtu int)
	choosePackets(mtu int)
	watchSizes(least, floor, base int)
	enablePieces()
	awaitReplies()
	watchedSizes() pmtud.Watched
	forgetLosses()
	packetsRefused(size int)
	probeArrived(size int)
	restartSizeWatch()

	tracing() *Trace
	snapshot() machineStats
}

var _ sessionPort = (*KCP)(nil)

// hooks are the functions that the machine calls. In a machine that stands
// alone all but output are zero. No hook may call a method that changes the
// machine, with two exceptions. outputInPlace may call releaseSegment. host.onSignal
// may call queueSignals, queueSignalOnce, acknowledgeAtOnce, validateAddress,
// enablePieces, awaitReplies, probeArrived and resizePackets.
type hooks struct {
	output       func(packet []byte) // sends a packet, which is valid only during the call
	packetBuffer func(n int) []byte  // returns space for the next packet; nil: the machine has its own
	host         machineHost         // takes signals and stream segments, and queues the latter; nil: none

	// outputInPlace sends a packet of one full segment from the segment's own
	// buffer, which has headroom bytes in front of the payload, so that no copy
	// is made for output. It keeps the buffer until it calls releaseSegment.
	outputInPlace func(s *sendSegment)
	headroom      int32 // bytes

	frugal bool // data too far ahead of rcv_nxt is dropped; see sessionReach
}

// setHooks connects the machine to a session. It keeps the output function.
func (k *KCP) setHooks(h hooks) {
	h.output = k.hooks.output
	k.hooks = h
}

// setConv changes the conversation id of a machine that has sent nothing.
func (k *KCP) setConv(conv uint32) { k.conv = conv }

// setPressure sets the memory pressure for the next Input, and whether the
// peer's address is not validated.
func (k *KCP) setPressure(p memoryPressure, unvalidated bool) {
	k.rcv.pressure, k.rcv.peerUnvalidated = p, unvalidated
}

// underPressure reports whether the last Input could drop data to save memory.
func (k *KCP) underPressure() bool { return k.rcv.peerUnvalidated || k.rcv.pressure != pressureNone }

// counts returns the counters, which the caller must not change.
func (k *KCP) counts() *Counters { return &k.counters }

// recvNext returns rcv_nxt.
func (k *KCP) recvNext() seq { return k.rcv.nxt }

// readable reports whether a read would return something.
func (k *KCP) readable() bool { return k.rcv.queue.n > k.rcv.partial || k.rcv.readDirect }

// queued reports whether anything is waiting to be read, even if only part of a
// message.
func (k *KCP) queued() bool { return k.rcv.queue.n > 0 }

// lendReadBuffer lets in-order data be copied straight into b; see
// deliverDirect.
func (k *KCP) lendReadBuffer(b []byte) { k.rcv.readInto = b }

// takeReadBuffer ends that, and returns how many bytes of b are free.
func (k *KCP) takeReadBuffer() (free int) {
	free = len(k.rcv.readInto)
	k.rcv.readInto, k.rcv.readDirect = nil, false
	return free
}

// windowReopened reports whether the next flush sends the peer a window update.
func (k *KCP) windowReopened() bool { return k.peer.probe&sendWins != 0 }

// limitWindow sets the most that is advertised as the receive window, in
// segments; 0: no limit. If shut is set, the window is zero. What the peer sends
// beyond it is taken as before. If the limit rises, or the window shuts, ACKs
// that wait leave with the next flush: the peer may be waiting for the larger
// window, and will send nothing more for which an ACK could wait.
func (k *KCP) limitWindow(segments uint32, shut bool) {
	old, was := k.rcv.share, k.rcv.shut
	if len(k.rcv.acks) > 0 && (shut != was || old > 0 && (segments == 0 || segments > old)) {
		k.rcv.ackPolicy.urgent = true
	}
	k.rcv.share, k.rcv.shut = segments, shut
}

// updateWindow makes the next flush tell the peer the window, with the ACKs that
// wait or by itself.
func (k *KCP) updateWindow() {
	if len(k.rcv.acks) > 0 {
		k.rcv.ackPolicy.urgent = true
	} else {
		k.peer.probe |= sendWins
	}
}

// resizeWindows is SetWindow at any time, with valid windows; 0 leaves one as
// it is. If a receive window that was full opens, the next flush sends a window
// update.
func (k *KCP) resizeWindows(send, receive int) {
	full := k.receiveFull()
	if send == 0 {
		send = int(k.cfg.sndWnd)
	}
	if receive == 0 {
		receive = int(k.cfg.rcvWnd)
	}
	if err := k.SetWindow(send, receive); err != nil {
		panic(err) // cannot happen: the session has checked them
	}
	k.afterRecv(full)
}

// timeoutLate returns for how many milliseconds the time-out of a segment has been
// due; negative: none is.
func (k *KCP) timeoutLate() int32 {
	if g := k.snd.timeouts.first; g != nil {
		return k.clock.now.Diff(g.at)
	}
	return -1
}

// holdTimeouts sets whether time-outs that have come wait, and NextFlush leaves them
// out.
func (k *KCP) holdTimeouts(on bool) { k.snd.loss.held = on }

// acksPending reports whether acknowledgements are waiting for the next flush.
func (k *KCP) acksPending() bool { return len(k.rcv.acks) > 0 }

// sendUna returns snd_una.
func (k *KCP) sendUna() seq { return k.snd.una }

// sendEnd returns the sequence number after the last segment, if no stream's leaves
// before those that wait.
func (k *KCP) sendEnd() seq { return k.snd.nxt + seq(k.snd.queue.n) }

// sendBytes returns the payload bytes that are waiting or not acknowledged.
func (k *KCP) sendBytes() int { return k.snd.bytes }

// segmentPayload returns the payload bytes of a full segment of a stream.
func (k *KCP) segmentPayload() int { return k.cfg.mss }

// sendPayload returns the payload bytes of a full segment of Send.
func (k *KCP) sendPayload() int {
	if k.rare != nil && k.numbers() {
		return k.cfg.mss - ownHeader
	}
	return k.cfg.mss
}

// sendLimit returns the send window in segments.
func (k *KCP) sendLimit() int { return int(k.cfg.sndWnd) }

// closeTail keeps later data out of the last waiting segment, which may be the
// end of a message.
func (k *KCP) closeTail() {
	if s := k.snd.queue.tail; s != nil {
		s.closed = true
	}
}

// unaRegressed reports whether the newest packet has a lower una than one
// before it.
func (k *KCP) unaRegressed() bool { return k.peer.unaWentBack }

// unsent returns the segments that wait to be sent for the first time.
func (k *KCP) unsent() int { return k.snd.queue.n }

// micros returns the machine's clock in microseconds.
func (k *KCP) micros() int64 { return k.clock.micros }

// rtoMillis returns the retransmission time-out in milliseconds.
func (k *KCP) rtoMillis() uint32 { return k.snd.rtt.rto }

// sampledRTT returns the round-trip time that the last Input has shown, in
// microseconds; 0: none. Segments that were sent more than once show none.
func (k *KCP) sampledRTT() int64 {
	if k.snd.rate.Input == nil {
		return 0
	}
	return k.snd.rate.Sample.RTT
}

// segmentPacket returns the packet, with its headroom, that s is when
// outputInPlace sends it.
func (k *KCP) segmentPacket(s *sendSegment) []byte { return s.buf[:int(k.hooks.headroom)+len(s.data)] }

// answerHeader returns the header of segments that are sent outside a flush.
func (k *KCP) answerHeader() header {
	return header{conv: k.conv, wnd: k.wndUnused(), una: k.rcv.nxt}
}

// queueSignals appends signals to those that leave with the next flush.
func (k *KCP) queueSignals(s ...signal) { k.signals = append(k.signals, s...) }

// queueSignalOnce queues s unless it equals the last signal queued, or limit
// signals are waiting.
func (k *KCP) queueSignalOnce(s signal, limit int) {
	n := len(k.signals)
	if n < limit && (n == 0 || k.signals[n-1] != s) {
		k.signals = append(k.signals, s)
	}
}

// lastSignal returns the last waiting signal; the zero signal if there is none.
func (k *KCP) lastSignal() signal {
	if n := len(k.signals); n > 0 {
		return k.signals[n-1]
	}
	return signal{}
}

// signalsPending reports whether signals are waiting for the next flush.
// NextFlush does not consider them.
func (k *KCP) signalsPending() bool { return len(k.signals) > 0 }

// replaceSignals queues s in place of all waiting signals.
func (k *KCP) replaceSignals(s signal) { k.signals = append(k.signals[:0], s) }

// dropPending drops the waiting acknowledgements and signals.
func (k *KCP) dropPending() { k.rcv.acks, k.signals = nil, nil }

// packetSize returns the size of the largest packet that the machine sends, in
// bytes.
func (k *KCP) packetSize() int { return k.cfg.mtu }

// resizePackets sets the MTU to what the path takes (DPLPMTUD, RFC 8899).
func (k *KCP) resizePackets(mtu int) {
	set := k.SetMTU
	if mtu < k.cfg.mtu {
		set = k.shrinkMTU
	}
	if err := set(mtu); err != nil {
		panic(err) // cannot happen: the session never goes below the base size
	}
}

// choosePackets sets the MTU to what the application has chosen, which is valid.
// Messages are cut for it from then on.
func (k *KCP) choosePackets(mtu int) {
	if err := k.SetMTU(mtu); err != nil {
		panic(err) // cannot happen: the session has checked it
	}
	k.cfg.messageMSS = 0
	k.restartSizeWatch()
}

// watchSizes lets the losses of packets be watched that are larger than least
// bytes or, while the MTU is no larger than that, than floor. base is what pieces
// fill if any packets as large have arrived.
func (k *KCP) watchSizes(least, floor, base int) {
	w := &k.snd.blackHole
	w.watchAbove, w.floor, w.base = int32(least), uint16(floor), uint16(base)
}

// enablePieces lets segments travel in pieces if packets that are watched are lost.
// The peer must support that.
func (k *KCP) enablePieces() { k.cfg.ext.SendPieces = true }

// awaitReplies switches Extensions.AwaitReplies on, which the peer has, too.
func (k *KCP) awaitReplies() { k.cfg.ext.AwaitReplies = true }

// watchedSizes returns what the large packets have shown that are watched.
func (k *KCP) watchedSizes() pmtud.Watched {
	w := &k.snd.blackHole
	seen := pmtud.Watched{Full: w.full, Lost: int(w.lost)}
	switch {
	case w.lost > 0:
		seen.Suspect = k.blackHoleSuspected()
	case !k.cfg.ext.SendPieces:
		seen.Arrived = w.taken > w.above(int32(k.cfg.mtu))
	}
	return seen
}

// forgetLosses resets the losses that watchedSizes returns.
func (k *KCP) forgetLosses() { k.snd.blackHole.lost = 0 }

// probeArrived records that a probe of size bytes has arrived, and resets the
// losses that watchedSizes returns.
func (k *KCP) probeArrived(size int) {
	k.snd.blackHole.lost = 0
	k.snd.blackHole.taken = max(k.snd.blackHole.taken, int32(size))
}

// restartSizeWatch restarts black hole detection, for another path.
func (k *KCP) restartSizeWatch() {
	k.snd.blackHole.full, k.snd.blackHole.lost, k.snd.blackHole.taken = 0, 0, 0
}

// tracing returns the hooks that SetTrace has installed; nil: none.
func (k *KCP) tracing() *Trace {
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
}

// snapshot returns the current figures.
func (k *KCP) snapshot() machineStats {
	return machineStats{
		srtt: k.snd.rtt.srtt, rttvar: k.snd.rtt.rttvar, rto: int32(k.snd.rtt.rto),
		inFlight: k.snd.inFlight, queued: k.snd.queue.n,
		readable: k.rcv.bytes,
		window:   int(k.peer.wnd), unread: int(k.peer.wndMax - k.peer.wnd),
		congestionWindow: k.snd.cc.Window(),
	}
}
