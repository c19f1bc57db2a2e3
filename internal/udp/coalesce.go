package udp

import "net/netip"

const (
	// maxSegments is the number of datagrams per packet that every kernel with
	// segmentation offload accepts: the least value of UDP_MAX_SEGMENTS.
	maxSegments = 64
	// maxMerged is the size, in bytes, of the largest packet that is merged
	// from several datagrams: the most that fits into an IPv4 packet behind its
	// headers. IPv6 would accept a little more.
	maxMerged = 65535 - 20 - 8
)

// plan divides batch into packets, in order: each number in the result is how
// many datagrams leave as one packet. It uses the space of runs, and plans no
// more packets than fit there and at most limit datagrams, and none from the first
// with Cut on. The rest of batch is for the next call. If merge is false, each
// datagram is a packet of its own; so are those to the addresses that refused, if
// not nil, reports.
func plan(runs []int, batch []Datagram, limit int, merge bool, refused func(netip.AddrPort) bool) []int {
	batch = batch[:min(len(batch), limit)]
	runs = runs[:0]
	for len(batch) > 0 && len(runs) < cap(runs) && !batch[0].Cut {
		n := 1
		if merge && (refused == nil || !refused(batch[0].Addr)) {
			n = mergeable(batch)
		}
		runs = append(runs, n)
		batch = batch[n:]
	}
	return runs
}

// mergeable returns how many datagrams at the head of batch can leave as one
// packet, which the kernel cuts into parts of the size of the first. They have
// the same addresses, and only the last may be shorter. An empty datagram is
// never merged, because no part of a packet is empty.
func mergeable(batch []Datagram) int {
	first := &batch[0]
	size := len(first.Buf)
	if size == 0 || first.Peer != nil || first.Alone || first.Cut {
		return 1
	}
	total := size
	for n := 1; n < min(len(batch), maxSegments); n++ {
		d := &batch[n]
		total += len(d.Buf)
		if len(d.Buf) == 0 || len(d.Buf) > size || total > maxMerged ||
			d.Addr != first.Addr || d.Local != first.Local || d.Peer != nil || d.Alone || d.Cut {
			return n
		}
		if len(d.Buf) < size {
			return n + 1
		}
	}
	return min(len(batch), maxSegments)
}

// cut splits the first datagram off a packet that the kernel has merged from
// datagrams of the given size, of which the last may be shorter. A size of 0
// means that the packet is a single datagram.
func cut(packet []byte, size int) (datagram, rest []byte) {
	if size <= 0 || size >= len(packet) {
		return packet[:len(packet):len(packet)], nil
	}
	return packet[:size:size], packet[size:]
}
