package udp

const (
	// maxSegments is the number of datagrams that every kernel with
	// segmentation offload takes as one packet.
	maxSegments = 64
	// maxMerged is the size of the largest packet that is made of many: what an
	// IPv4 packet has room for behind its headers. IPv6 would take a little
	// more.
	maxMerged = 65535 - 20 - 8
)

// plan cuts batch into packets, in order: each number in the result is that of
// the datagrams which leave together. It uses the space of runs, plans no more
// packets than fit there and no more than limit datagrams, and leaves the rest
// of batch to the next call. Where merge is false, each datagram is a packet of
// its own.
func plan(runs []int, batch []Datagram, limit int, merge bool) []int {
	batch = batch[:min(len(batch), limit)]
	runs = runs[:0]
	for len(batch) > 0 && len(runs) < cap(runs) {
		n := 1
		if merge {
			n = mergeable(batch)
		}
		runs = append(runs, n)
		batch = batch[n:]
	}
	return runs
}

// mergeable returns how many datagrams at the head of batch can leave as one
// packet, which is cut into parts of the size of the first: they go to the same
// address, and none but the last may differ in size and be shorter. An empty
// datagram is never merged, since no part of a packet is empty.
func mergeable(batch []Datagram) int {
	first := &batch[0]
	size := len(first.Buf)
	if size == 0 || first.Peer != nil {
		return 1
	}
	total := size
	for n := 1; n < min(len(batch), maxSegments); n++ {
		d := &batch[n]
		total += len(d.Buf)
		if len(d.Buf) == 0 || len(d.Buf) > size || total > maxMerged ||
			d.Addr != first.Addr || d.Peer != nil {
			return n
		}
		if len(d.Buf) < size {
			return n + 1
		}
	}
	return min(len(batch), maxSegments)
}

// cut takes the first datagram from a packet that the kernel has joined of
// datagrams of the given size, of which the last may be shorter. A size of 0
// says that the packet is one datagram.
func cut(packet []byte, size int) (datagram, rest []byte) {
	if size <= 0 || size >= len(packet) {
		return packet[:len(packet):len(packet)], nil
	}
	return packet[:size:size], packet[size:]
}
