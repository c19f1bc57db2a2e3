package kcp

// blackHoleDetector notes whether large packets arrive, as far as acknowledgements and
// losses of the data in them tell: a path may have come to swallow them, while
// small ones get through (RFC 8899 §4.3).
type blackHoleDetector struct {
	watchAbove   int    // packets larger than this are watched; 0: none
	lost         int    // losses of such packets since one as large has arrived
	smallestLost int    // size of the smallest of them
	taken        int    // size of the largest packet that has arrived on this path
	since        seq    // when the first was noticed
	full         uint64 // segments of full size sent
}

// watchedLosses is how many losses, spread over a time-out at least, make large
// packets suspect. Among losses by chance some packet arrives before; and where
// none does, it costs a probe.
const watchedLosses = 3

// noteReach notes that s stands in a packet which reaches to size. Of several
// transmissions the smallest counts: any of them may be the one acknowledged.
func (s *sendSegment) noteReach(size int) {
	if s.packet == 0 || size < int(s.packet) {
		s.packet = int32(size)
	}
}

// takenForLost notes that a packet is. One larger than the MTU is from before
// that has shrunk, and tells nothing new.
func (w *blackHoleDetector) takenForLost(size, mtu int, now seq) {
	if w.watchAbove == 0 || size <= w.watchAbove || size > mtu {
		return
	}
	if w.lost == 0 {
		w.smallestLost, w.since = size, now
	}
	w.lost++
	w.smallestLost = min(w.smallestLost, size)
}

// arrived notes that a packet has.
func (w *blackHoleDetector) arrived(size int) {
	w.taken = max(w.taken, size)
	if w.lost > 0 && size >= w.smallestLost {
		w.lost = 0
	}
}

// doubtful reports whether s, which is about to be transmitted, is large enough
// that the path may swallow it, so that it goes in pieces: when it is repeated and
// no packet as large has arrived yet, and while large packets are suspect.
func (k *KCP) doubtful(s *sendSegment) bool {
	w := &k.snd.blackHole
	return k.cfg.ext.SendPieces && w.watchAbove > 0 && s.size() > w.watchAbove && k.divisible(s, w.watchAbove) &&
		(s.xmit > 1 && s.size() > w.taken || w.lost > 0 && k.blackHoleSuspected())
}

// blackHoleSuspected reports whether packets may be too large for the path.
func (k *KCP) blackHoleSuspected() bool {
	w := &k.snd.blackHole
	return w.lost >= watchedLosses && k.clock.now.diff(w.since) >= int32(k.snd.rtt.rto)
}

// shrinkMTU sets a smaller MTU, because the path swallows larger packets. What
// is larger leaves in pieces with its next transmission.
func (k *KCP) shrinkMTU(mtu int) error {
	whole := max(k.cfg.messageMSS, k.cfg.mss)
	if err := k.SetMTU(mtu); err != nil {
		return err
	}
	k.cfg.messageMSS, k.snd.blackHole.lost = whole, 0
	return nil
}
