package kcp

// What the session layer may ask of the state machine, beyond the public API.
// Session files call methods of this interface and exported ones, and touch no
// field; TestSessionsUseThePort holds them to it. Nothing is called through the
// interface, so it costs nothing.
type sessionPort interface {
	// Set-up, before the first packet.
	setHooks(hooks)
	setConv(uint32)
	limitUnvalidated(overhead int, legacy bool)

	// Packets that come in.
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
	receiveProgress() (mark seq, stalled bool)
	closeReceive()
	acksPending() bool

	// The send side.
	sendUna() seq
	sendEnd() seq
	sendBytes() int
	segmentPayload() int
	unaRegressed() bool
	rtoMillis() uint32
	silentTransmissions() int
	discardSend()
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

	// Address validation.
	spendCredit(n int) bool
	overdrawn() bool
	echoed() bool
	validateAddress()
	acknowledgeAtOnce()

	// Path MTU discovery.
	packetSize() int
	resizePackets(mtu int)
	enablePieces(base int)
	blackHoleSuspected() bool
	largePackets() (sent uint64, lost int)
	forgetLosses()
	restartSizeWatch()

	snapshot() machineStats
}

var _ sessionPort = (*KCP)(nil)

// hooks are what the machine calls. All but output are nil, and the rest zero, in
// a machine that stands alone. None may call a method of the machine, but for
// onSignal, which may queue signals and set what its port offers.
type hooks struct {
	output       func(packet []byte) // takes a packet, which is valid during the call
	packetBuffer func(n int) []byte  // returns space for the next packet; nil: the machine's own
	onSignal     func(signal) bool   // takes signals; true: una and wnd of the segment do not count

	// outputInPlace is given packets of one full segment in the segment's own
	// buffer, which has headroom bytes in front of the payload, in place of a copy
	// for output. It keeps the buffer until it calls releaseSegment.
	outputInPlace func(s *sendSegment)
	headroom      int

	frugal bool // segments may be too far ahead to be held
}

// setHooks connects the machine to a session. The output stays.
func (k *KCP) setHooks(h hooks) {
	h.output = k.hooks.output
	k.hooks = h
}

// setConv changes the conversation id of a machine that has sent nothing.
func (k *KCP) setConv(conv uint32) { k.conv = conv }

// setPressure tells how sparing with memory the next Input has to be, and
// whether the peer's address is not validated.
func (k *KCP) setPressure(p memoryPressure, unvalidated bool) {
	k.rcv.pressure, k.rcv.peerUnvalidated = p, unvalidated
}

// underPressure reports whether the last Input had to spare memory.
func (k *KCP) underPressure() bool { return k.rcv.peerUnvalidated || k.rcv.pressure != pressureNone }

// counts returns the counters, which the caller must not change.
func (k *KCP) counts() *Counters { return &k.counters }

// recvNext returns rcv_nxt.
func (k *KCP) recvNext() seq { return k.rcv.nxt }

// readable reports whether a read would return something.
func (k *KCP) readable() bool { return k.rcv.queued > k.rcv.partial || k.rcv.readDirect }

// queued reports whether anything waits to be read, be it part of a message.
func (k *KCP) queued() bool { return k.rcv.queued > 0 }

// lendReadBuffer has data in order put straight into b.
func (k *KCP) lendReadBuffer(b []byte) { k.rcv.readInto = b }

// takeReadBuffer ends that, and returns how much of b is free.
func (k *KCP) takeReadBuffer() (free int) {
	free = len(k.rcv.readInto)
	k.rcv.readInto, k.rcv.readDirect = nil, false
	return free
}

// windowReopened reports whether the peer is to be told of the receive window
// with the next flush.
func (k *KCP) windowReopened() bool { return k.peer.probe&sendWins != 0 }

// receiveProgress returns a number that grows with whatever is read or arrives
// in order, and whether nothing can be read because something is missing.
func (k *KCP) receiveProgress() (mark seq, stalled bool) {
	stalled = (k.rcv.early > 0 || k.rcv.assembly.held != nil) && k.rcv.queued == k.rcv.partial
	return 2*k.rcv.nxt - seq(k.rcv.queued), stalled
}

// acksPending reports whether acknowledgements wait for the next flush.
func (k *KCP) acksPending() bool { return len(k.rcv.acks) > 0 }

// sendUna returns snd_una.
func (k *KCP) sendUna() seq { return k.snd.una }

// sendEnd returns the number behind the last segment that was queued.
func (k *KCP) sendEnd() seq { return k.snd.end }

// sendBytes returns the payload bytes that are not acknowledged, or not sent.
func (k *KCP) sendBytes() int { return k.snd.bytes }

// segmentPayload returns the payload bytes of a full segment.
func (k *KCP) segmentPayload() int { return k.cfg.mss }

// unaRegressed reports whether the newest packet acknowledges less than others
// before it.
func (k *KCP) unaRegressed() bool { return k.peer.unaWentBack }

// rtoMillis returns the retransmission time-out in milliseconds.
func (k *KCP) rtoMillis() uint32 { return k.snd.rtt.rto }

// segmentPacket returns the packet that a lent segment is, with its headroom.
func (k *KCP) segmentPacket(s *sendSegment) []byte { return s.buf[:k.hooks.headroom+len(s.data)] }

// answerHeader returns the header of what is sent outside a flush.
func (k *KCP) answerHeader() header {
	return header{conv: k.conv, wnd: k.wndUnused(), una: k.rcv.nxt}
}

// queueSignals puts signals behind those that leave with the next flush.
func (k *KCP) queueSignals(s ...signal) { k.signals = append(k.signals, s...) }

// queueSignalOnce is queueSignals for a signal that is not repeated, and not
// queued behind limit others.
func (k *KCP) queueSignalOnce(s signal, limit int) {
	n := len(k.signals)
	if n < limit && (n == 0 || k.signals[n-1] != s) {
		k.signals = append(k.signals, s)
	}
}

// lastSignal returns the last of those that wait; one without code if there is
// none.
func (k *KCP) lastSignal() signal {
	if n := len(k.signals); n > 0 {
		return k.signals[n-1]
	}
	return signal{}
}

// signalsPending reports whether signals wait for the next flush.
func (k *KCP) signalsPending() bool { return len(k.signals) > 0 }

// replaceSignals queues s in the place of all that wait.
func (k *KCP) replaceSignals(s signal) { k.signals = append(k.signals[:0], s) }

// dropPending drops the acknowledgements and signals that wait.
func (k *KCP) dropPending() { k.rcv.acks, k.signals = nil, nil }

// packetSize returns the largest packet that the machine puts out, in bytes.
func (k *KCP) packetSize() int { return k.cfg.mtu }

// resizePackets sets the MTU that the path has been found to have.
func (k *KCP) resizePackets(mtu int) {
	set := k.SetMTU
	if mtu < k.cfg.mtu {
		set = k.shrinkMTU
	}
	if err := set(mtu); err != nil {
		panic(err) // sizes are from the base on
	}
}

// enablePieces lets segments larger than base travel in pieces, to a peer that
// takes them.
func (k *KCP) enablePieces(base int) {
	k.cfg.ext.SendPieces = true
	k.snd.blackHole.watchAbove = base
}

// largePackets returns how many full packets were sent, and how many were lost
// in a row while smaller ones arrived.
func (k *KCP) largePackets() (sent uint64, lost int) {
	return k.snd.blackHole.full, k.snd.blackHole.lost
}

// forgetLosses forgets the losses that largePackets tells of.
func (k *KCP) forgetLosses() { k.snd.blackHole.lost = 0 }

// restartSizeWatch forgets what was learnt about sizes, for another path.
func (k *KCP) restartSizeWatch() {
	k.snd.blackHole.full, k.snd.blackHole.lost, k.snd.blackHole.taken = 0, 0, 0
}

// machineStats is what ConnStats tells of the machine.
type machineStats struct {
	srtt, rttvar, rto int32 // milliseconds
	inFlight, queued  int   // segments
	readable          int   // segments received, and not yet read
	window            int   // segments, of the peer
	congestionWindow  int   // segments
}

// snapshot returns the figures of now.
func (k *KCP) snapshot() machineStats {
	return machineStats{
		srtt: k.snd.rtt.srtt, rttvar: k.snd.rtt.rttvar, rto: int32(k.snd.rtt.rto),
		inFlight: k.snd.inFlight, queued: int(k.snd.end - k.snd.nxt),
		readable: int(k.rcv.queued-k.rcv.void) + k.rcv.early,
		window:   int(k.peer.wnd), congestionWindow: k.snd.cc.Window(),
	}
}
