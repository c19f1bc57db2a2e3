package kcp

// blackHoleDetector is black hole detection (RFC 8899 §4.3): a path may begin
// to drop large packets without a word, while small ones get through. The
// detector judges by the acknowledgements and losses of the data in them.
type blackHoleDetector struct {
	watchAbove   int    // bytes; larger packets are watched; 0: none
	lost         int    // watched packets lost since one of smallestLost arrived
	smallestLost int    // bytes of the smallest of them
	taken        int    // bytes of the largest packet arrived on this path
	since        seq    // when the first of those losses was noticed
	full         uint64 // full segments sent, without retransmissions
}

// watchedLosses is how many losses, spread over at least one RTO, make large
// packets suspect. If the losses are random, some large packet arrives before
// that. If none does, the false suspicion costs a probe.
const watchedLosses = 3

// noteReach records that s ends size bytes into its packet. Of several
// transmissions the smallest size counts, since any of them may be the one
// acknowledged.
func (s *sendSegment) noteReach(size int) {
	if s.packet == 0 || size < int(s.packet) {
		s.packet = int32(size)
	}
}

// declaredLost records that a packet of size bytes is declared lost. One
// larger than mtu dates from before the MTU shrank, and says nothing new.
func (w *blackHoleDetector) declaredLost(size, mtu int, now seq) {
	if w.watchAbove == 0 || size <= w.watchAbove || size > mtu {
		return
	}
	if w.lost == 0 {
		w.smallestLost, w.since = size, now
	}
	w.lost++
	w.smallestLost = min(w.smallestLost, size)
}

// arrived records that a packet of size bytes was acknowledged.
func (w *blackHoleDetector) arrived(size int) {
	w.taken = max(w.taken, size)
	if w.lost > 0 && size >= w.smallestLost {
		w.lost = 0
	}
}

// doubtful reports whether s, which is about to be transmitted, leaves in
// pieces because the path may drop a packet of its size. A retransmission does
// if no packet as large has arrived yet, and every segment does while large
// packets are suspect.
func (k *KCP) doubtful(s *sendSegment) bool {
	w := &k.snd.blackHole
	return k.cfg.ext.SendPieces && w.watchAbove > 0 && s.size() > w.watchAbove && k.divisible(s, w.watchAbove) &&
		(s.xmit > 1 && s.size() > w.taken || w.lost > 0 && k.blackHoleSuspected())
}

// blackHoleSuspected reports whether the path may be dropping large packets.
func (k *KCP) blackHoleSuspected() bool {
	w := &k.snd.blackHole
	return w.lost >= watchedLosses && k.clock.now.diff(w.since) >= int32(k.snd.rtt.rto)
}

// shrinkMTU sets a smaller MTU, because the path drops larger packets. A
// segment that is too large now leaves in pieces with its next transmission.
func (k *KCP) shrinkMTU(mtu int) error {
	whole := max(k.cfg.messageMSS, k.cfg.mss)
	if err := k.SetMTU(mtu); err != nil {
		return err
	}
	k.cfg.messageMSS, k.snd.blackHole.lost = whole, 0
	return nil
}
