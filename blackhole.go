package kcp

// blackHoleDetector is black hole detection (RFC 8899 §4.3): a path may begin
// to drop large packets without a word, while small ones get through. The
// detector judges by the acknowledgements and losses of the data in them.
type blackHoleDetector struct {
	watchAbove   int32  // bytes; larger packets are watched; 0: none
	base         uint16 // bytes; what nearly every path takes
	floor        uint16 // bytes; in place of watchAbove while the MTU is no larger than that
	lost         int32  // watched packets lost since one of smallestLost arrived
	smallestLost int32  // bytes of the smallest of them
	taken        int32  // bytes of the largest packet arrived on this path
	since        seq    // when the first of those losses was noticed
	full         uint64 // full segments sent, without retransmissions
}

// watchedLosses is how many losses, spread over at least one RTO, make large
// packets suspect. If the losses are random, some large packet arrives before
// that. If none does, the false suspicion costs a probe.
const watchedLosses = 3

// arrivedIn returns in how large a packet s has arrived at least, in bytes. Any
// of its transmissions may be the one acknowledged.
func (s *sendSegment) arrivedIn() int32 {
	if s.least > 0 && (s.packet == 0 || s.least < s.packet) {
		return s.least
	}
	return s.packet
}

// blackHole returns the detector.
func (k *KCP) blackHole() *blackHoleDetector { return &k.snd.blackHole }

// watch lets the losses of packets be watched that are larger than least bytes or, while
// the MTU is no larger than that, than floor. base is what pieces fill if any packets as
// large have arrived.
func (w *blackHoleDetector) watch(least, floor, base int) {
	w.watchAbove, w.floor, w.base = int32(least), uint16(floor), uint16(base)
}

// forget resets the losses.
func (w *blackHoleDetector) forget() { w.lost = 0 }

// probed records that a probe of size bytes has arrived, and resets the losses.
func (w *blackHoleDetector) probed(size int) { w.lost, w.taken = 0, max(w.taken, int32(size)) }

// restart forgets what was found, for another path.
func (w *blackHoleDetector) restart() { w.full, w.lost, w.taken = 0, 0, 0 }

// declaredLost records that a packet of size bytes is declared lost. One
// larger than mtu dates from before the MTU shrank, and says nothing new.
func (w *blackHoleDetector) declaredLost(size, mtu int32, now seq) {
	if above := w.above(mtu); above == 0 || size <= above || size > mtu {
		return
	}
	if w.lost == 0 {
		w.smallestLost, w.since = size, now
	}
	w.lost++
	w.smallestLost = min(w.smallestLost, size)
}

// arrived records that a packet of size bytes was acknowledged.
func (w *blackHoleDetector) arrived(size int32) {
	w.taken = max(w.taken, size)
	if w.lost > 0 && size >= w.smallestLost {
		w.lost = 0
	}
}

// maxPacket returns the size of the largest packet that may be sent now, in
// bytes. While large packets are suspect it is no more than nearly every path
// takes.
func (k *KCP) maxPacket() int {
	if w := &k.snd.blackHole; w.lost >= watchedLosses && k.cfg.ext.SendPieces && k.blackHoleSuspected() {
		return min(k.cfg.mtu, int(max(w.above(int32(k.cfg.mtu)), min(int32(w.base), w.taken))))
	}
	return k.cfg.mtu
}

// maxPacketOf returns the size of the largest packet that s may be in, in
// bytes. A retransmission is in none larger than what has arrived on this path:
// its size may be why it was lost.
func (k *KCP) maxPacketOf(s *sendSegment) int {
	size, w := k.maxPacket(), &k.snd.blackHole
	if w.watchAbove > 0 && k.cfg.ext.SendPieces && (s.xmit > 1 || s.repeats > 0) {
		return min(size, int(max(w.above(int32(k.cfg.mtu)), w.taken)))
	}
	return size
}

// above returns the size of the largest packets that are not watched, in bytes; 0:
// none are watched.
func (w *blackHoleDetector) above(mtu int32) int32 {
	if mtu > w.watchAbove {
		return w.watchAbove
	}
	return min(w.watchAbove, int32(w.floor))
}

// blackHoleSuspected reports whether the path may be dropping large packets.
func (k *KCP) blackHoleSuspected() bool {
	w := &k.snd.blackHole
	return w.lost >= watchedLosses && uint32(k.clock.now-w.since) >= k.snd.rtt.rto
}

// packetsRefused has the segments retransmitted at once that were last in packets of
// size bytes or more: the system has refused these.
func (k *KCP) packetsRefused(size int) {
	for _, l := range []*segmentList{&k.snd.loss.fresh, &k.snd.loss.resent} {
		for s := l.head; s != nil; s = s.order.next {
			if s.packet >= int32(size) {
				k.retransmitAt(s, k.clock.now, LossRefused)
			}
		}
	}
}

// shrinkMTU sets a smaller MTU, because the path drops larger packets. A
// segment that is too large now leaves in pieces with its next transmission.
func (k *KCP) shrinkMTU(mtu int) error {
	whole := max(k.cfg.messageMSS, k.cfg.mss)
	if err := k.SetMTU(mtu); err != nil {
		return err
	}
	w := &k.snd.blackHole
	k.cfg.messageMSS, w.lost, w.taken = whole, 0, min(w.taken, int32(mtu))
	return nil
}
