package streams

import "github.com/arqnet/kcp/stats"

// MostDatagrams is the most datagrams that wait for ReceiveDatagram. One
// more pushes out the oldest: unreliable data should at least be fresh.
const MostDatagrams = 256

// DatagramEntryBytes is the memory of a waiting datagram beside its payload, in
// bytes.
const DatagramEntryBytes = 48

// Datagrams holds datagrams that have arrived.
type Datagrams struct {
	waiting [][]byte // oldest first
	bytes   int      // memory of waiting, with DatagramEntryBytes for each
	Stats   stats.Datagrams
	Moved   uint64 // payload bytes received and sent
	Handled bool   // by a handler; else datagrams wait for ReceiveDatagram
}

// Arrived counts one that has arrived, with so many bytes of payload.
func (q *Datagrams) Arrived(payload int) {
	q.Stats.Received++
	q.Moved += uint64(payload)
}

// Add queues a copy of b, and counts it. It returns the one that was dropped for that, the
// oldest; nil: none.
func (q *Datagrams) Add(b []byte) (dropped []byte) {
	q.Arrived(len(b))
	if len(q.waiting) >= MostDatagrams {
		dropped = q.Pop()
		q.Stats.Dropped++
	}
	b = append(make([]byte, 0, len(b)), b...)
	q.waiting = append(q.waiting, b)
	q.bytes += cap(b) + DatagramEntryBytes
	return dropped
}

// Pop removes and returns the oldest datagram.
func (q *Datagrams) Pop() []byte {
	b := q.waiting[0]
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	q.bytes -= cap(b) + DatagramEntryBytes
	if len(q.waiting) == 0 {
		q.waiting = nil
	}
	return b
}

// Len returns how many wait. q may be nil.
func (q *Datagrams) Len() int {
	if q == nil {
		return 0
	}
	return len(q.waiting)
}

// Memory returns the bytes of memory of those that wait. q may be nil.
func (q *Datagrams) Memory() int {
	if q == nil {
		return 0
	}
	return q.bytes
}

// Clear forgets those that wait.
func (q *Datagrams) Clear() { q.waiting, q.bytes = nil, 0 }

// Shed drops those that wait, and counts them. q may be nil.
func (q *Datagrams) Shed() {
	if q != nil {
		q.Stats.Dropped += uint64(len(q.waiting))
		q.Clear()
	}
}

// Refuse counts one that has arrived and is dropped.
func (q *Datagrams) Refuse() {
	q.Stats.Received++
	q.Stats.Dropped++
}

// Sent counts one that leaves, with so many bytes of payload.
func (q *Datagrams) Sent(payload int) {
	q.Stats.Sent++
	q.Moved += uint64(payload)
}
