package kcp

// Flush puts out everything that may leave now: acknowledgements, window
// probes, retransmissions and new segments. It does nothing before the first
// Update.
func (k *KCP) Flush() {
	if !k.updated {
		return
	}
	h := header{conv: k.conv, wnd: k.wndUnused(), una: k.unaToSend()}
	if k.holdsAcks() {
		k.acks = k.acks[:0]
	}
	k.flushSignals(&h)
	packets, bare := k.counters.PacketsSent, len(k.packet)
	k.repeatAcks(&h)
	if k.ext.ThinAcks {
		k.flushEarlyAcks(&h)
	} else {
		k.flushAcks(&h)
	}
	k.scheduleProbe()
	k.flushProbes(&h)

	window := k.sendWindow()
	first := k.sndNxt
	rate := k.cc.PacingRate()
	if rate > 0 {
		k.pace.refill(k.micros, rate)
	}
	k.congestionState()
	timedOut, fast := k.flushRetransmissions(&h, rate)
	k.admit(window, rate)
	k.flushNew(&h, first)
	k.flushOutageProbe(&h)
	k.flushRedundant(&h, first)
	k.flushCoveredAck(&h, packets == k.counters.PacketsSent && bare == len(k.packet))
	k.emit()

	s := k.congestionState()
	s.Window = int(window)
	if fast {
		k.cc.OnFastRetransmit(s)
	}
	if timedOut {
		k.cc.OnTimeout(s)
	}
	if k.sndNxt == k.sndEnd {
		k.pace.idle()
		if k.mayAdmit(window) {
			k.rate.limited(k.flightBytes)
			k.cc.OnAppLimited(s)
		}
	}
	k.cc.OnTick(s)
}

// flushAcks puts out one ACK for every PUSH received since the last flush, or
// as few as Extensions.SparseAcks allows.
func (k *KCP) flushAcks(h *header) {
	for i, a := range k.acks {
		if k.ext.SparseAcks && i != len(k.acks)-1 && a.sn.before(k.rcvNxt) {
			continue
		}
		k.putAck(h, a)
	}
	k.acks = k.acks[:0]
}

// putAck puts an acknowledgement into a packet, if the peer may be sent it.
func (k *KCP) putAck(h *header, a ackItem) {
	if !k.maySend(headerSize) {
		return // the peer will ask again
	}
	h.cmd, h.frg, h.sn, h.ts, h.len = cmdAck, 0, a.sn, a.ts, 0
	h.encode(k.reserve(headerSize))
	k.counters.AcksSent++
}

// Window probing of the reference, in milliseconds.
const (
	probeWaitInitial = 5000
	probeWaitMax     = 120000
)

// scheduleProbe asks for the peer's window from time to time while it is shut.
func (k *KCP) scheduleProbe() {
	if k.rmtWnd != 0 {
		k.tsProbe, k.probeWait = 0, 0
		return
	}
	initial, limit := uint32(probeWaitInitial), uint32(probeWaitMax)
	if k.ext.ProbeWait > 0 {
		initial = k.ext.ProbeWait
	}
	if k.ext.MaxProbeWait > 0 {
		limit = k.ext.MaxProbeWait
	}
	if k.probeWait == 0 {
		k.probeWait = initial
		k.tsProbe = k.now + seq(k.probeWait)
		return
	}
	if k.now.before(k.tsProbe) {
		return
	}
	k.probeWait = max(k.probeWait, initial)
	k.probeWait = min(k.probeWait+k.probeWait/2, limit)
	k.tsProbe = k.now + seq(k.probeWait)
	k.probe |= sendWask
}

// flushProbes puts out the probes that are asked for. Their sn and ts are what
// the last ACK of this flush left there, as in the reference; nobody reads them.
func (k *KCP) flushProbes(h *header) {
	if !k.maySend(2 * headerSize) {
		k.probe = 0
	}
	if k.probe&sendWask != 0 {
		h.cmd = cmdWask
		h.encode(k.reserve(headerSize))
		k.counters.ProbesSent++
	}
	if k.probe&sendWins != 0 {
		h.cmd = cmdWins
		h.encode(k.reserve(headerSize))
	}
	k.probe = 0
}

// sendWindow returns how many segments may be in flight.
func (k *KCP) sendWindow() uint32 {
	return min(k.sndWnd, k.rmtWnd, uint32(k.cc.Window()))
}

// mayAdmit reports whether a window of sendWindow has room for one more.
func (k *KCP) mayAdmit(window uint32) bool {
	if k.ext.PipeWindow {
		return k.inFlight < k.cc.Window() && k.sndNxt.before(k.sndUna+seq(min(k.sndWnd, k.rmtWnd)))
	}
	return k.sndNxt.before(k.sndUna + seq(window))
}

// admit moves waiting segments into the window, as far as the pacing budget
// goes. It begins a packet when there is budget for it and then fills it up.
func (k *KCP) admit(window uint32, rate int64) {
	room := 0    // in the packet that these segments will make
	pending := 0 // bytes to an address that is not validated
	for k.sndNxt != k.sndEnd && k.mayAdmit(window) {
		s := k.snd.at(k.sndNxt)
		if !k.mayBegin(s, pending) {
			return
		}
		if k.validation != nil {
			pending += s.size() + k.validation.overhead
		}
		if rate > 0 && s.size() > room {
			if !k.pace.ready() {
				return
			}
			room = k.mtu
		}
		room -= s.size()
		k.pace.spend(s.size())
		s.sn = k.sndNxt
		k.sndNxt++
		k.inFlight++
		k.rate.sent(s, k.micros, k.flightBytes)
		k.flightBytes += int64(s.size())
	}
	k.pace.idle()
}

// backOff lengthens the time-out of s, which has just expired.
func (k *KCP) backOff(s *sendSegment) {
	limit := uint32(wireMaxRTO)
	if k.ext.MaxRTO > 0 {
		limit = max(k.ext.MaxRTO, k.rtt.rto)
	}
	s.rto = k.rtt.backoff(s.rto, k.nodelay, limit)
	if k.ext.FreshFastAck {
		s.fastack = 0
	}
}

// flushNew sends the segments from first on for the first time.
func (k *KCP) flushNew(h *header, first seq) {
	delay := uint32(0)
	if k.nodelay == NoDelayOff {
		delay = k.rtt.rto >> 3
	}
	for sn := first; sn != k.sndNxt; sn++ {
		s := k.snd.at(sn)
		s.xmit = 1
		s.rto = k.rtt.rto
		s.resendTS = k.now + seq(s.rto+delay)
		k.counters.SegmentsSent++
		k.counters.BytesSent += uint64(len(s.data))
		if len(s.data) >= k.mss {
			k.blackHole.full++
		}
		k.sendSegment(s, h)
	}
}

// transmit puts s into a packet and schedules its time-out.
func (k *KCP) sendSegment(s *sendSegment, h *header) {
	s.ts = k.now
	k.putSegment(s, h)
	k.timeouts.add(s)
	k.loss.sent(s)
	if s.xmit >= k.deadLink {
		k.dead = true
	}
	info := s.info()
	info.LostMicros, s.lostAt = s.lostAt, 0
	k.cc.OnPacketSent(k.lastState(), info)
	k.trace.sent(s)
}

// putSegment puts s into a packet, or several, or lends it out as one.
func (k *KCP) putSegment(s *sendSegment, h *header) {
	h.cmd, h.frg, h.ts, h.sn, h.len = cmdPush, s.frg, k.now, s.sn, uint32(len(s.data))
	if k.validation != nil {
		k.validation.transmitted(s.sn, k.now)
	}
	if size := k.needsPieces(s); size > 0 {
		k.putPieces(s, h, size)
		s.noteReach(min(size, k.blackHole.watchAbove))
		return
	}
	if k.outputInPlace != nil && len(s.data) == k.mss && !s.beingWritten {
		k.emit() // whatever there is, this does not fit in
		h.encode(s.buf[k.headroom-headerSize:])
		s.beingWritten = true
		k.charge(s.size())
		k.counters.PacketsSent++
		s.noteReach(s.size())
		k.outputInPlace(s)
		return
	}
	b := k.reserve(s.size())
	h.encode(b)
	copy(b[headerSize:], s.data)
	s.noteReach(len(k.packet))
}

// releaseSegment ends the loan of a segment's buffer.
func (k *KCP) releaseSegment(s *sendSegment) {
	s.beingWritten = false
	if s.orphaned {
		k.buffers.putSegment(s)
	}
}

// reserve returns n bytes at the end of the packet under construction, which
// is put out first where they would exceed the MTU.
func (k *KCP) reserve(n int) []byte {
	k.charge(n)
	if len(k.packet) > 0 && len(k.packet)+n > k.mtu {
		k.emit()
	}
	if k.packet == nil {
		size := max(k.mtu, n)
		if k.packetBuffer != nil {
			k.packet = k.packetBuffer(size)[:0]
		} else {
			k.packet = make([]byte, 0, size)
		}
	}
	at := len(k.packet)
	if at+n > cap(k.packet) {
		k.packet = append(make([]byte, 0, at+n), k.packet...)
	}
	k.packet = k.packet[:at+n]
	return k.packet[at:]
}

// emit puts out the packet under construction, if there is one.
func (k *KCP) emit() {
	if len(k.packet) == 0 {
		return
	}
	k.counters.PacketsSent++
	packet := k.packet
	k.packet = nil
	k.output(packet)
	if k.packetBuffer == nil {
		k.packet = packet[:0]
	}
}
