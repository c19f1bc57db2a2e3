package udp

const (
	// BurstLeast is how many bytes a batch has, at least, that is part of a burst.
	BurstLeast = 32 << 10
	// burstMost is how many bytes of a burst are read before they are answered.
	burstMost = 512 << 10
)

// Burst is how much of dense traffic was read that is not answered yet: one answer for
// many batches costs less, while more is there to be read (compare NAPI of Linux, and
// RFC 9000 §13.2.2). The zero value is ready.
type Burst struct{ bytes int }

// More reads a further batch of a burst after one of n bytes, BurstLeast or more, if that
// has arrived. It does not wait. If it returns 0 the burst has ended, and is to be
// answered. An error of the socket is left to the next ReadBatch.
func (b *Burst) More(c Conn, batch []Datagram, n int) int {
	r, ok := c.(interface{ readArrived([]Datagram) int })
	if b.bytes += n; ok && b.bytes < burstMost {
		if n := r.readArrived(batch); n > 0 {
			return n
		}
	}
	b.bytes = 0
	return 0
}
