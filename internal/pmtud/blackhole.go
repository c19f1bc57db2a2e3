package pmtud

// BlackHole is black hole detection (RFC 8899 §4.3): a path may begin
// to drop large packets without a word, while small ones get through. The
// detector judges by the acknowledgements and losses of the data in them.
type BlackHole struct {
	watchAbove   int32  // bytes; larger packets are watched; 0: none
	base         uint16 // bytes; what nearly every path takes
	floor        uint16 // bytes; in place of watchAbove while the MTU is not larger than that
	Lost         int32  // watched packets lost since one of smallestLost arrived
	smallestLost int32  // bytes of the smallest of them
	Recent       int32  // bytes of the largest packet arrived since Watched was called last
	Taken        int32  // bytes of the largest packet arrived on this path
	since        uint32 // in milliseconds, when the first of those losses was noticed
	Full         uint64 // full segments sent, without retransmissions
	bySize       bySize
}

// WatchedLosses is how many losses, spread over at least one RTO, make large
// packets suspect. If the losses are random, some large packet arrives before
// that. If none does, the false suspicion costs a probe.
const WatchedLosses = 3

// Watch lets the losses of packets be watched that are larger than least bytes or, while
// the MTU is not larger than that, than floor. base is what pieces fill if any packets as
// large have arrived.
func (w *BlackHole) Watch(least, floor, base int) {
	w.watchAbove, w.floor, w.base = int32(least), uint16(floor), uint16(base)
}

// Forget resets the losses.
func (w *BlackHole) Forget() { w.Lost = 0 }

// Probed records that a probe of size bytes has arrived, and resets the losses.
func (w *BlackHole) Probed(size int) { w.Lost, w.Taken = 0, max(w.Taken, int32(size)) }

// Restart forgets what was found, for another path.
func (w *BlackHole) Restart() {
	w.Full, w.Lost, w.Taken, w.Recent, w.bySize = 0, 0, 0, 0, bySize{}
}

// DeclaredLost records that a packet of size bytes is declared lost. One
// larger than mtu dates from before the MTU shrank, and says nothing new.
func (w *BlackHole) DeclaredLost(size, mtu int32, now uint32) {
	above := w.above(mtu)
	if above == 0 || size > mtu {
		return
	}
	if mtu > w.watchAbove {
		w.bySize.lost(w.Full, size, above)
	}
	if size <= above {
		return
	}
	if w.Lost == 0 {
		w.smallestLost, w.since = size, now
	}
	w.Lost++
	w.smallestLost = min(w.smallestLost, size)
}

// Arrived records that a packet of size bytes was acknowledged.
func (w *BlackHole) Arrived(size int32) {
	w.Taken, w.Recent = max(w.Taken, size), max(w.Recent, size)
	if w.Lost > 0 && size >= w.smallestLost {
		w.Lost = 0
	}
}

// above returns the size of the largest packets that are not watched, in bytes; 0:
// none are watched.
func (w *BlackHole) above(mtu int32) int32 {
	if mtu > w.watchAbove {
		return w.watchAbove
	}
	return min(w.watchAbove, int32(w.floor))
}

// Divides reports whether segments leave in different sizes now, and SendsSmall has to be
// asked.
func (w *BlackHole) Divides() bool { return w.Lost > 0 || w.bySize.trying }

// SendsSmall reports whether segment sn leaves in packets that are not watched.
func (w *BlackHole) SendsSmall(sn uint32) bool { return w.bySize.sendsSmall(w.Full, sn) }

// Least returns the size of the largest packet that is not watched, or size if that is
// less.
func (w *BlackHole) Least(size int32) int32 { return min(size, w.watchAbove) }

// Suspected reports whether the path may be dropping large packets, at a time in
// milliseconds.
func (w *BlackHole) Suspected(now, rto uint32) bool {
	return w.Lost >= WatchedLosses && now-w.since >= rto
}

// Most returns the size of the largest packet while large ones are suspect.
func (w *BlackHole) Most(mtu int32) int32 {
	return min(mtu, max(w.above(mtu), min(int32(w.base), w.Taken)))
}

// MostAgain returns the size of the largest packet of a retransmission: none is larger
// than what has arrived on this path, as its size may be why it was lost.
func (w *BlackHole) MostAgain(size, mtu int32) int32 {
	if w.watchAbove == 0 {
		return size
	}
	return min(size, max(w.above(mtu), w.Taken))
}

// Shrunk records that the MTU has become smaller.
func (w *BlackHole) Shrunk(mtu int32) {
	w.Lost, w.Taken, w.bySize = 0, min(w.Taken, mtu), bySize{}
}

// Watched returns what the large packets have shown that are watched, at a time in
// milliseconds. pieces reports whether segments leave in pieces.
func (w *BlackHole) Watched(now, rto uint32, mtu int32, pieces bool) Watched {
	seen := Watched{Full: w.Full, Lost: int(w.Lost), BySize: w.bySize.found, Recent: int(w.Recent)}
	w.Recent = 0
	switch {
	case w.Lost > 0:
		seen.Suspect = w.Suspected(now, rto)
	case !pieces:
		seen.Arrived = w.Taken > w.above(mtu)
	}
	return seen
}
