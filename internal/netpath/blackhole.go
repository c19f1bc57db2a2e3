package netpath

// BlackHole is black hole detection (RFC 8899 §4.3): a path may begin
// to drop large packets without a word, while small ones get through. The
// detector judges by the acknowledgements and losses of the data in them.
type BlackHole struct {
	watchAbove int32  // bytes; larger packets are watched; 0: none
	base       uint16 // bytes; what nearly every path takes
	floor      uint16 // bytes; in place of watchAbove while the MTU is not larger than that
	large      losses // of watched packets
	Recent     int32  // bytes of the largest packet arrived since TakeRecent was called
	Taken      int32  // bytes of the largest packet arrived on this path
	Full       uint64 // full segments sent, without retransmissions
	small      losses // of packets above floor, while larger ones are watched
	bySize     bySize
}

// losses are those of packets since one as large as the smallest of them arrived.
type losses struct {
	n        int32
	smallest int32  // bytes
	since    uint32 // in milliseconds, when the first was noticed
}

// add counts the loss of a packet of size bytes.
func (l *losses) add(size int32, now uint32) {
	if l.n == 0 {
		*l = losses{0, size, now}
	}
	l.n++
	l.smallest = min(l.smallest, size)
}

// arrived records that a packet of size bytes has arrived.
func (l *losses) arrived(size int32) {
	if l.n > 0 && size >= l.smallest {
		l.n = 0
	}
}

// suspect reports whether packets as large may not arrive.
func (l *losses) suspect(now, rto uint32) bool { return l.n >= WatchedLosses && now-l.since >= rto }

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
func (w *BlackHole) Forget() { w.large.n, w.small.n = 0, 0 }

// Probed records that a probe of size bytes has arrived, and resets the losses.
func (w *BlackHole) Probed(size int) {
	w.Forget()
	w.Taken = max(w.Taken, int32(size))
}

// Restart forgets what was found, for another path.
func (w *BlackHole) Restart() {
	w.Full, w.Taken, w.Recent, w.bySize = 0, 0, 0, bySize{}
	w.Forget()
}

// SizedLosses is the loss of a packet of Size bytes.
type SizedLosses struct {
	Size, MTU int32
	Now       uint32 // in milliseconds
	SN, Next  uint32 // of the segment in it, and of the next new one
}

// DeclaredLost records that a packet is declared lost. One larger than the MTU dates from
// before the MTU shrank, and says nothing new.
func (w *BlackHole) DeclaredLost(l SizedLosses) {
	size, now := l.Size, l.Now
	above := w.above(l.MTU)
	if above == 0 || size > l.MTU {
		return
	}
	if l.MTU > w.watchAbove {
		w.bySize.lost(w.Full, above, l)
	}
	switch {
	case size > above:
		w.large.add(size, now)
	case w.floor > 0 && size > int32(w.floor):
		w.small.add(size, now)
	}
}

// Arrived records that a packet of size bytes was acknowledged.
func (w *BlackHole) Arrived(size int32) {
	w.Taken, w.Recent = max(w.Taken, size), max(w.Recent, size)
	if w.Losing() {
		w.large.arrived(size)
		w.small.arrived(size)
	}
	if w.bySize.trying {
		w.bySize.arrived(size)
	}
}

// TakeRecent returns the size of the largest packet that has arrived since the last call,
// in bytes; 0: none.
func (w *BlackHole) TakeRecent() int {
	size := w.Recent
	w.Recent = 0
	return int(size)
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
func (w *BlackHole) Divides() bool { return w.Losing() || w.bySize.trying }

// Losing reports whether packets were lost, and none as large has arrived since.
func (w *BlackHole) Losing() bool { return w.large.n > 0 || w.small.n > 0 }

// SendsSmall reports whether segment sn leaves in packets that are not watched, at a time
// in milliseconds.
func (w *BlackHole) SendsSmall(sn, now uint32) bool { return w.bySize.sendsSmall(w.Full, sn, now) }

// Least returns the size of the largest packet that is not watched, or size if that is
// less.
func (w *BlackHole) Least(size int32) int32 { return min(size, w.watchAbove) }

// Suspected reports whether the path may be dropping large packets, at a time in
// milliseconds.
func (w *BlackHole) Suspected(now, rto uint32) bool {
	return w.large.suspect(now, rto) || w.small.suspect(now, rto)
}

// Most returns the size of the largest packet, at a time in milliseconds: while large
// ones are suspect, what nearly every path takes, and else the MTU.
func (w *BlackHole) Most(now, rto uint32, mtu int32) int32 {
	if !w.large.suspect(now, rto) {
		return mtu
	}
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
	w.Forget()
	w.Taken, w.bySize = min(w.Taken, mtu), bySize{}
}

// Grown records that the MTU has become larger. Whether packets of that size are lost is
// not known.
func (w *BlackHole) Grown() { w.bySize = bySize{} }

// Watched returns what the large packets have shown that are watched, at a time in
// milliseconds. pieces reports whether segments leave in pieces.
func (w *BlackHole) Watched(now, rto uint32, mtu int32, pieces bool) Watched {
	seen := Watched{Full: w.Full, Lost: int(w.large.n + w.small.n), BySize: w.bySize.found}
	switch {
	case seen.Lost > 0:
		seen.Suspect, seen.Small = w.Suspected(now, rto), w.small.suspect(now, rto)
	case !pieces:
		seen.Arrived = w.Taken > w.above(mtu)
	}
	return seen
}
