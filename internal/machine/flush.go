package machine

import (
	"math"

	"github.com/arqnet/kcp/congestion"
	"github.com/arqnet/kcp/internal/recovery"
	"github.com/arqnet/kcp/internal/wire"
	"github.com/arqnet/kcp/stats"
)

// packetBuilder is the packet under construction, and scratch space.
type packetBuilder struct {
	packet  []byte     // under construction; empty: none
	limit   int32      // of its size, in bytes
	held    uint32     // memory of segments that wait or are in flight, in grains
	last    *Segment   // the last in it; nil: none
	scratch []*Segment // empty between two calls
	buffers Buffers    // of the send side
}

// peerWindow is the window that the peer advertises, and the state of
// zero-window probing (RFC 9293 §3.8.6.1).
type peerWindow struct {
	wnd         uint32 // segments
	wndMax      uint32 // largest advertised, in segments; 0: none yet
	una         Seq    // of the segment whose window was taken last
	unaWentBack bool   // the latest segment had a lower una than one before
	ackHold     uint8  // milliseconds that the peer's ACKs may wait, as announced
	probe       uint8  // sendWask and sendWins, for the next flush
	tsProbe     Seq    // when the next window probe leaves
	probeWait   uint32 // milliseconds between probes; 0: not probing
}

// mechanisms are the parts of Flush that most flushes can do without.
type mechanisms uint8

const (
	dueValidation mechanisms = 1 << iota // the peer's address is not validated
	dueSignals                           // signals wait
	dueAcks                              // ACKs wait, or segments were counted that need none
	dueProbes                            // the peer's window is zero, or a probe or an update waits
	dueLosses                            // a segment has timed out, or is a suspect
	dueCopies                            // redundant copies may be wanted
)

// dueNow returns which mechanisms a flush needs.
func (k *KCP) dueNow() (due mechanisms) {
	if k.snd.validation != nil {
		due |= dueValidation
	}
	if len(k.signals) > 0 {
		due |= dueSignals
	}
	if p := &k.rcv.ackPolicy; len(k.rcv.acks) > 0 || p.Segments != 0 || p.Urgent || p.Filled {
		due |= dueAcks
	}
	if k.peer.wnd == 0 || k.peer.probeWait != 0 || k.peer.probe != 0 {
		due |= dueProbes
	}
	if g := k.snd.timeouts.first; g != nil && !g.at.After(k.clock.now) && !k.snd.loss.held || k.snd.loss.suspects.head != nil {
		due |= dueLosses
	}
	if k.cfg.ext.Redundancy != 0 || k.snd.redundancy.Lossy || k.counters.FastRetransmits|k.counters.TimeoutRetransmits != 0 {
		due |= dueCopies
	}
	return due
}

// Flush sends everything that may leave now: acknowledgements, window probes,
// retransmissions and new segments. It does nothing before the first Update or
// SetClock.
func (k *KCP) Flush() {
	if !k.clock.started {
		return
	}
	due := k.dueNow()
	h := wire.Header{Conv: k.conv, Wnd: k.wndUnused(), Una: k.rcv.nxt}
	if due&dueValidation != 0 {
		if h.Una = k.unaToSend(); k.holdsAcks() {
			k.rcv.acks = k.rcv.acks[:0]
		}
	}
	if due&dueSignals != 0 {
		k.flushSignals(&h)
	}
	packets, bare := k.counters.PacketsSent, len(k.out.packet)
	if due&dueAcks != 0 {
		if k.rcv.ackRepeats != nil {
			k.repeatAcks(&h)
		}
		if k.cfg.ext.ThinAcks {
			k.flushEarlyAcks(&h)
		} else {
			k.flushAcks(&h)
		}
	}
	if due&dueProbes != 0 {
		k.scheduleProbe()
		k.flushProbes(&h)
	}

	window := k.sendWindow()
	first := k.snd.nxt
	rate := k.snd.cc.PacingRate()
	if rate > 0 {
		k.refillPacer(rate)
	}
	k.congestionState()
	timedOut, fast := false, false
	if due&dueLosses != 0 {
		timedOut, fast = k.flushRetransmissions(&h, rate)
	}
	if k.cfg.ext.PipeWindow {
		k.flushLost(&h, rate)
	}
	k.admit(window, rate)
	if first != k.snd.nxt {
		k.flushNew(&h, first)
	}
	if k.snd.recovery.Outage.On { // which a time-out may just have shown
		k.flushOutageProbe(&h)
	}
	if due&dueCopies != 0 || k.snd.redundancy.Lossy { // a loss may just have been found
		k.flushRedundant(&h, first)
	}
	if due&dueAcks != 0 {
		k.flushCoveredAck(&h, packets == k.counters.PacketsSent && bare == len(k.out.packet))
	}
	k.emit()
	if p := &k.rcv.ackPolicy; p.Replies.Open || p.Announced || timedOut || fast {
		p.Sent(k.clock.now, first != k.snd.nxt, timedOut || fast)
	}
	k.tellController(window, timedOut, fast)
	k.out.buffers.Trim(uint32(k.clock.now), trimAfter)
	k.rcv.buffers.Trim(uint32(k.clock.now), trimAfter)
	if k.cfg.trace != nil {
		k.traceMetrics()
	}
}

// refillPacer gives the pacer the credit of the time since the last flush.
func (k *KCP) refillPacer(rate int64) {
	k.snd.pace.Burst = 0
	if b, ok := k.snd.cc.(congestion.Burster); ok {
		k.snd.pace.Burst = int32(b.Burst())
	}
	k.snd.pace.Refill(k.clock.micros, rate, k.cfg.mtu)
}

// tellController tells the congestion controller what a flush has found, and whether
// the window, or the peer's, is what kept it from sending more.
func (k *KCP) tellController(window uint32, timedOut, fast bool) {
	s := k.congestionState()
	s.Window = int(window)
	if fast {
		k.snd.cc.OnFastRetransmit(s)
	}
	if timedOut {
		k.snd.cc.OnTimeout(s)
	}
	if !k.noteLimit(window) || k.capped() {
		k.snd.pace.Idle()
		if k.mayAdmit(window) {
			k.snd.rate.Limited(k.snd.flightBytes)
			k.snd.cc.OnAppLimited(s)
		}
	} else if k.peer.wnd < peerLimits && !k.inPeerWindow() && k.inCongestionWindow() {
		k.snd.rate.Limited(k.snd.flightBytes) // by the peer, and not by the path
	}
	k.snd.cc.OnTick(s)
}

// noteLimit records what has ended a flush, and reports whether new segments wait.
func (k *KCP) noteLimit(window uint32) bool {
	f := recovery.LimitFacts{Waits: k.snd.queue.n > 0, Reader: 2*k.rcv.queue.n > k.cfg.rcvWnd, Resend: k.snd.loss.again.n+k.snd.loss.due.n > 0}
	if k.rare != nil && k.streaming() {
		on := k.hooks.Host.StreamsWait()
		f.Waits, f.Reader, f.Credit = f.Waits || on.Some, f.Reader || on.Unread, on.Blocked
	}
	if f != (recovery.LimitFacts{}) || k.limit.By != stats.LimitApplication || k.limit.Refused {
		f.InFlight, f.Capped, f.Address, f.Peer = k.snd.inFlight > 0, k.capped(), k.snd.validation != nil, !k.inPeerWindow()
		f.Congestion = !k.inCongestionWindow() && (!f.Peer || k.snd.cc.Window() < int(min(k.cfg.sndWnd, k.peer.wnd))) || !f.Peer && !k.mayAdmit(window)
		f.Send = f.Peer && k.peer.wnd > k.cfg.sndWnd
		if k.limit.Next(f, uint32(k.clock.now), k.snd.rtt.srtt) && k.hooks.Host != nil {
			k.hooks.Host.LimitedBy(k.limit.By)
		}
	}
	return f.Waits
}

// Refuse records that a write was refused for lack of room.
func (k *KCP) Refuse() {
	k.limit.Refused = true
	k.noteLimit(k.sendWindow())
}

// flushAcks sends one ACK for every PUSH received since the last flush, or as
// few as Extensions.SparseAcks allows.
func (k *KCP) flushAcks(h *wire.Header) {
	for i, a := range k.rcv.acks {
		if k.cfg.ext.SparseAcks && i != len(k.rcv.acks)-1 && a.SN.Before(k.rcv.nxt) {
			continue
		}
		k.putAck(h, a, 0)
	}
	k.rcv.acks = k.rcv.acks[:0]
}

// putAck puts an acknowledgement into a packet, unless the anti-amplification
// limit forbids it (RFC 9000 §8.1). frg is 0, or what
// recovery.DelayedAck.Announce returns.
func (k *KCP) putAck(h *wire.Header, a recovery.Ack, frg uint8) {
	if k.snd.validation != nil && !k.maySend(wire.HeaderSize) {
		return // the peer retransmits, and is acknowledged then
	}
	h.Cmd, h.Frg, h.SN, h.TS, h.Len = wire.CmdAck, frg, a.SN, a.TS, 0
	h.Encode(k.reserve(wire.HeaderSize, k.maxPacket()))
	k.counters.AcksSent++
}

// Zero-window probing of the reference, in milliseconds.
const (
	probeWaitInitial = 5000
	probeWaitMax     = 120000
)

// scheduleProbe asks for the peer's window, at growing intervals, while the
// window is zero (zero-window probe, RFC 9293 §3.8.6.1).
func (k *KCP) scheduleProbe() {
	if k.peer.wnd != 0 {
		k.peer.tsProbe, k.peer.probeWait = 0, 0
		return
	}
	initial, limit := uint32(probeWaitInitial), uint32(probeWaitMax)
	if k.cfg.ext.ProbeWait > 0 {
		initial = k.cfg.ext.ProbeWait
	}
	if k.cfg.ext.MaxProbeWait > 0 {
		limit = k.cfg.ext.MaxProbeWait
	}
	if k.peer.probeWait == 0 {
		k.peer.probeWait = initial
		k.peer.tsProbe = k.clock.now + Seq(k.peer.probeWait)
		return
	}
	if k.clock.now.Before(k.peer.tsProbe) {
		return
	}
	k.peer.probeWait = max(k.peer.probeWait, initial)
	k.peer.probeWait = min(k.peer.probeWait+k.peer.probeWait/2, limit)
	k.peer.tsProbe = k.clock.now + Seq(k.peer.probeWait)
	k.peer.probe |= sendWask
}

// flushProbes sends the window probes and updates that are due. Their sn and ts
// are left over from the last ACK of this flush, as in the reference; no
// receiver reads them.
func (k *KCP) flushProbes(h *wire.Header) {
	if !k.maySend(2 * wire.HeaderSize) {
		k.peer.probe = 0
	}
	if k.peer.probe&sendWask != 0 {
		h.Cmd = wire.CmdWask
		h.Encode(k.reserve(wire.HeaderSize, k.maxPacket()))
		k.counters.ProbesSent++
	}
	if k.peer.probe&sendWins != 0 {
		h.Cmd = wire.CmdWins
		h.Encode(k.reserve(wire.HeaderSize, k.maxPacket()))
	}
	k.peer.probe = 0
}

// peerLimits is the window, in segments, below which a peer's window counts as
// what limits the rate. A larger one limits long paths only, whose rate congestion
// control has to find.
const peerLimits = 128

// sendWindow returns how many segments may be in flight: the least of the send
// window, the peer's window and the congestion window.
func (k *KCP) sendWindow() uint32 {
	return min(k.cfg.sndWnd, k.peer.wnd, uint32(k.snd.cc.Window()))
}

// mayAdmit reports whether one more segment may enter window, which sendWindow
// returned. With Extensions.PipeWindow the congestion window limits the segments that
// are not acknowledged, and only the others limit the distance from snd_una.
func (k *KCP) mayAdmit(window uint32) bool {
	if k.cfg.ext.PipeWindow {
		return k.inCongestionWindow() && k.inPeerWindow()
	}
	return k.snd.nxt.Before(k.snd.una + Seq(window))
}

// inCongestionWindow reports whether one more segment fits into the congestion window.
func (k *KCP) inCongestionWindow() bool {
	if c, ok := k.snd.cc.(congestion.ByteWindow); ok {
		return float64(k.snd.flightBytes) < c.WindowBytes()
	}
	return k.snd.inFlight < k.snd.cc.Window()
}

// inPeerWindow reports whether one more segment fits into the send window and the
// peer's.
func (k *KCP) inPeerWindow() bool {
	return k.snd.nxt.Before(k.snd.una + Seq(min(k.cfg.sndWnd, k.peer.wnd)))
}

// admit moves waiting segments into the window, as far as pacing and the cap allow. It
// begins a packet only when there is budget for one, and then fills it.
func (k *KCP) admit(window uint32, rate int64) {
	room := 0    // bytes left in the packet that these segments fill
	pending := 0 // bytes admitted for an address that is not validated
	var capped *recovery.Shaper
	planned := 0 // bytes that the cap has yet to count
	if k.rare != nil {
		if capped = k.rare.capped; capped != nil {
			planned = k.unspent(capped)
		}
	}
	for k.mayAdmit(window) {
		if k.rare != nil {
			k.pull()
		}
		s := k.snd.queue.head
		if s == nil {
			break
		}
		if s.tag != nil && k.DropSpent() {
			continue
		}
		if k.snd.validation != nil && !k.mayBegin(s, pending) {
			return
		}
		if k.snd.validation != nil {
			pending += s.size() + k.snd.validation.Overhead()
		}
		if (rate > 0 || capped != nil) && s.size() > room {
			if rate > 0 && !k.snd.pace.Ready() {
				return
			}
			if capped != nil && !capped.Ready(k.clock.micros, planned) {
				break
			}
			room = k.cfg.mtu
		}
		room -= s.size()
		planned += s.size()
		k.snd.pace.Spend(s.size())
		if s.sn = k.snd.nxt; s.tag != nil {
			s.tag.Begun = true
		}
		if k.rare != nil && !s.ofStream() {
			k.enterOwn(s)
		}
		if n := int(k.snd.nxt-k.snd.una) + 1; n > k.snd.ring.Len() {
			k.snd.ring.Reserve(uint32(k.snd.una), n)
		}
		s.unlinkOrder()
		*k.snd.ring.At(uint32(k.snd.nxt)) = s
		k.snd.nxt++
		k.snd.inFlight++
		s.tx = k.snd.rate.Sent(s.size(), k.clock.micros, k.snd.flightBytes)
		k.snd.flightBytes += int64(s.size())
	}
	k.snd.pace.Idle()
}

// backOff lengthens the retransmission time-out of s, which has just expired.
func (k *KCP) backOff(s *Segment) {
	limit := uint32(wireMaxRTO)
	if k.cfg.ext.MaxRTO > 0 {
		limit = max(k.cfg.ext.MaxRTO, k.snd.rtt.rto)
	}
	s.rto = k.snd.rtt.backoff(s.rto, k.cfg.nodelay, limit)
	if k.cfg.ext.FreshFastAck {
		s.fastack = 0
	}
}

// flushNew sends the segments from first on for the first time.
func (k *KCP) flushNew(h *wire.Header, first Seq) {
	resendTS := k.clock.now + k.firstTimeout(k.snd.rtt.rto) + Seq(k.peer.ackHold)
	for sn := first; sn != k.snd.nxt; sn++ {
		s := k.snd.ring.at(sn)
		s.xmit = 1
		s.rto = k.snd.rtt.rto
		s.resendTS = resendTS
		k.counters.SegmentsSent++
		k.counters.BytesSent += uint64(len(s.data))
		if len(s.data) >= k.cfg.mss {
			k.snd.blackHole.Full++
		}
		k.sendSegment(s, h)
	}
}

// firstTimeout returns the time-out of the first transmission of a segment, in
// milliseconds, without the peer's wait for data. rto is the segment's
// retransmission time-out.
func (k *KCP) firstTimeout(rto uint32) Seq {
	if k.cfg.nodelay == NoDelayOff {
		return Seq(rto + rto>>3)
	}
	return Seq(min(rto, max(k.snd.rtt.minRTO, k.probeTimeout(uint32(k.snd.rtt.srtt)))))
}

// probeTimeout returns the probe time-out (PTO, RFC 8985 §7.2) for a round-trip
// time, both in milliseconds. It does not grow with the variance. If no probe is
// to be sent, it is longer than any retransmission time-out: a lone segment is
// retransmitted, and a probe must not count reordering as loss.
func (k *KCP) probeTimeout(rtt uint32) uint32 {
	if !k.cfg.ext.TailProbe || k.cfg.nodelay == NoDelayOff || k.snd.inFlight < 2 || rtt == 0 || k.snd.recovery.Reordering.Dominates() {
		return math.MaxUint32
	}
	return 2*rtt + max(recovery.MaxAckDelay, k.cfg.interval)
}

// sendSegment puts s into a packet and starts its retransmission timer.
func (k *KCP) sendSegment(s *Segment, h *wire.Header) {
	if s.tag != nil {
		k.abandonIfSpent(s, s.xmit)
	}
	s.ts = k.clock.now
	k.putSegment(s, h)
	k.snd.timeouts.add(s)
	k.snd.loss.sent(s, k.fastLimits())
	if s.xmit >= k.cfg.deadLink {
		k.dead = true
	}
	info := s.info()
	info.LostMicros, s.lostAt = s.lostAt, 0
	k.snd.cc.OnPacketSent(k.snd.ccState, info) // which Flush has brought up to date
	if k.cfg.trace != nil {
		k.cfg.trace.sent(s)
	}
}

// putSegment puts s into a packet, cuts it into several, or passes it to
// OutputInPlace as a packet of its own.
func (k *KCP) putSegment(s *Segment, h *wire.Header) {
	h.Cmd, h.Frg, h.TS, h.SN, h.Len = wire.CmdPush, s.frg, k.clock.now, s.sn, uint32(len(s.data))
	if k.snd.validation != nil {
		k.snd.validation.Transmitted(s.sn, k.clock.now)
	}
	if s.packet != 0 || s.least != 0 {
		s.least, s.packet = s.arrivedIn(), 0
	}
	if s.tag != nil {
		k.abandonIfSpent(s, 0) // a redundant copy does not go through sendSegment
		if s.tag.Abandoned {
			k.putAbandoned(s, h)
			return
		}
	}
	if s.streamed {
		h.Cmd, h.Frg = wire.CmdStream, 0
	}
	size := k.cfg.mtu
	if s.xmit > 1 || s.repeats > 0 || k.snd.blackHole.Divides() {
		size = k.maxPacketOf(s)
	}
	if (s.size() > size || s.sn == 0) && k.needsPieces(s, size) {
		k.putPieces(s, h, size)
		return
	}
	if k.hooks.OutputInPlace != nil && len(s.data) == k.cfg.mss && !s.beingWritten {
		k.emit() // a full segment does not fit behind others
		h.Encode(s.buf[k.hooks.Headroom-wire.HeaderSize:])
		s.beingWritten = true
		if k.snd.validation != nil {
			k.snd.validation.Charge(s.size(), !k.fits(s.size(), size))
		}
		k.counters.PacketsSent++
		if k.rare != nil && k.rare.capped != nil {
			c := k.rare.capped
			c.Sent(s.size(), true)
		}
		s.packet = max(s.packet, int32(s.size()))
		k.hooks.OutputInPlace(s, s.buf[:int(k.hooks.Headroom)+len(s.data)])
		return
	}
	b := k.reserve(s.size(), size)
	h.Encode(b)
	copy(b[wire.HeaderSize:], s.data)
	k.packed(s)
}

// ReleaseSegment takes back a segment that OutputInPlace has kept. The buffer
// is recycled if the segment was acknowledged meanwhile.
func (k *KCP) ReleaseSegment(s *Segment) {
	s.beingWritten = false
	if s.orphaned {
		k.out.recycle(s)
	}
}

// reserve returns n bytes at the end of the packet under construction, which grows no
// larger than size bytes from then on. If they would exceed that, or what else is in
// the packet allows, it emits that packet first and begins another.
func (k *KCP) reserve(n, size int) []byte {
	if k.snd.validation != nil {
		k.snd.validation.Charge(n, !k.fits(n, size))
	}
	if len(k.out.packet) > 0 && !k.fits(n, size) {
		k.emit()
	}
	if len(k.out.packet) == 0 {
		k.out.limit = int32(size)
	}
	k.out.limit = min(k.out.limit, int32(size))
	if k.out.packet == nil {
		size := max(k.cfg.mtu, n)
		if k.hooks.PacketBuffer != nil {
			k.out.packet = k.hooks.PacketBuffer(size)[:0]
		} else {
			k.out.packet = make([]byte, 0, size)
		}
	}
	at := len(k.out.packet)
	if at+n > cap(k.out.packet) {
		k.out.packet = append(make([]byte, 0, at+n), k.out.packet...)
	}
	k.out.packet = k.out.packet[:at+n]
	return k.out.packet[at:]
}

// fits reports whether n bytes fit behind the bytes of the packet under
// construction, in a packet of size bytes.
func (k *KCP) fits(n, size int) bool {
	return len(k.out.packet) > 0 && len(k.out.packet)+n <= min(int(k.out.limit), size)
}

// packed records that s, or a piece of it, is the last in the packet under
// construction.
func (k *KCP) packed(s *Segment) {
	s.packet = max(s.packet, int32(len(k.out.packet))) // which may still grow
	k.out.last = s
}

// emit passes the packet under construction, if any, to the output function.
func (k *KCP) emit() {
	if len(k.out.packet) == 0 {
		return
	}
	k.counters.PacketsSent++
	packet := k.out.packet
	k.out.packet = nil
	if k.rare != nil && k.rare.capped != nil {
		c := k.rare.capped
		c.Sent(len(packet), k.out.last != nil)
	}
	if s := k.out.last; s != nil {
		s.packet = max(s.packet, int32(len(packet))) // what came behind it was lost with it
		k.out.last = nil
	}
	k.hooks.Output(packet)
	if k.hooks.PacketBuffer == nil {
		k.out.packet = packet[:0]
	}
}
