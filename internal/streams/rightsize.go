package streams

import "time"

// Dynamic right-sizing decides when a receive buffer is too small for its path, as Linux
// does it for TCP. A sender has at most a buffer of data on its way, and so sends at most
// a buffer in each round trip. Times are since an epoch of the caller's choice.

// BufferMeter measures how fast a reader takes data out of a receive buffer. The zero
// value has measured nothing. It is not safe for concurrent use.
type BufferMeter struct {
	since time.Duration // when read was 0
	read  int           // bytes
	all   int           // bytes read since the buffer was doubled
}

// trips is within how many round trips half a buffer is read if the buffer is what
// limits the sender, or soon will. Without losses that takes little more than one
// half; if most round trips have a loss that a reader waits for, up to two.
const trips = 2

// Read records that n bytes were read out of a buffer of size bytes, and
// reports whether the buffer should be doubled: half of it was read within two
// round trips. So data that nobody reads lets no buffer grow. rtt is the
// round-trip time; 0 means that it is not known.
func (m *BufferMeter) Read(n, size int, now, rtt time.Duration) (double bool) {
	if m.read == 0 {
		m.since = now
	}
	m.all = min(m.all+n, size)
	if m.read += n; m.read < size/2 {
		return false
	}
	m.read = 0
	return m.doubled(now-m.since <= trips*rtt && rtt > 0)
}

// Early reports whether a buffer of size bytes should be doubled because used bytes of it
// hold what has arrived behind a lost segment, or have yet to arrive, and that is half of
// it: the sender may have to wait before the segment is sent again. The reader must have
// read half of it before, at any speed.
func (m *BufferMeter) Early(used, size int) bool {
	return m.doubled(used > size/2 && m.all >= size/2)
}

// doubled records that the buffer is to be doubled, if now is set, which it returns.
func (m *BufferMeter) doubled(now bool) bool {
	if now {
		m.all = 0
	}
	return now
}
