package kcp

// sizeWatch notes whether large packets arrive, as far as acknowledgements and
// losses of the data in them tell: a path may have come to swallow them, while
// small ones get through (RFC 8899 §4.3).
type sizeWatch struct {
	above int    // packets larger than this are watched; 0: none
	lost  int    // losses of such packets since one as large has arrived
	least int    // size of the smallest of them
	taken int    // size of the largest packet that has arrived on this path
	since seq    // when the first was noticed
	full  uint64 // segments of full size sent
}

// watchedLosses is how many losses, spread over a time-out at least, make large
// packets suspect. Among losses by chance some packet arrives before; and where
// none does, it costs a probe.
const watchedLosses = 3

// noteSize notes that s stands in a packet which reaches to size. Of several
// transmissions the smallest counts: any of them may be the one acknowledged.
func (s *sendSegment) noteSize(size int) {
	if s.packet == 0 || size < int(s.packet) {
		s.packet = int32(size)
	}
}

// takenForLost notes that a packet is. One larger than the MTU is from before
// that has shrunk, and tells nothing new.
func (w *sizeWatch) takenForLost(size, mtu int, now seq) {
	if w.above == 0 || size <= w.above || size > mtu {
		return
	}
	if w.lost == 0 {
		w.least, w.since = size, now
	}
	w.lost++
	w.least = min(w.least, size)
}

// arrived notes that a packet has.
func (w *sizeWatch) arrived(size int) {
	w.taken = max(w.taken, size)
	if w.lost > 0 && size >= w.least {
		w.lost = 0
	}
}

// doubtful reports whether s, which is about to be transmitted, is large enough
// that the path may swallow it, so that it goes in pieces: when it is repeated and
// no packet as large has arrived yet, and while large packets are suspect.
func (k *KCP) doubtful(s *sendSegment) bool {
	w := &k.sizes
	return k.ext.SendPieces && w.above > 0 && s.size() > w.above && k.divisible(s, w.above) &&
		(s.xmit > 1 && s.size() > w.taken || w.lost > 0 && k.suspicious())
}

// suspicious reports whether packets may be too large for the path.
func (k *KCP) suspicious() bool {
	w := &k.sizes
	return w.lost >= watchedLosses && k.now.diff(w.since) >= int32(k.rtt.rto)
}

// shrinkMTU sets a smaller MTU, because the path swallows larger packets. What
// is larger leaves in pieces with its next transmission.
func (k *KCP) shrinkMTU(mtu int) error {
	whole := max(k.wholeMSS, k.mss)
	if err := k.SetMTU(mtu); err != nil {
		return err
	}
	k.wholeMSS, k.sizes.lost = whole, 0
	return nil
}
