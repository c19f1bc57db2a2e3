// Package datagrams has the datagrams of a session that have arrived, and counts them.
package datagrams

import "github.com/arqnet/kcp/stats"

// Most is the most datagrams that wait for ReceiveDatagram. One
// more pushes out the oldest: unreliable data should at least be fresh.
const Most = 256

// EntryBytes is the memory of a waiting datagram beside its payload, in
// bytes.
const EntryBytes = 48

// Queue holds datagrams that have arrived.
type Queue struct {
	waiting [][]byte // oldest first
	bytes   int      // memory of waiting, with EntryBytes for each
	Stats   stats.Datagrams
	Moved   uint64 // payload bytes received and sent
	Handled bool   // by a handler; else datagrams wait for ReceiveDatagram
}

// Arrived counts one that has arrived, with so many bytes of payload.
func (q *Queue) Arrived(payload int) {
	q.Stats.Received++
	q.Moved += uint64(payload)
}

// Add queues a copy of b, and counts it. It returns the one that was dropped for that, the
// oldest; nil: none.
func (q *Queue) Add(b []byte) (dropped []byte) {
	q.Arrived(len(b))
	if len(q.waiting) >= Most {
		dropped = q.Pop()
		q.Stats.Dropped++
	}
	b = append(make([]byte, 0, len(b)), b...)
	q.waiting = append(q.waiting, b)
	q.bytes += cap(b) + EntryBytes
	return dropped
}

// Pop removes and returns the oldest datagram.
func (q *Queue) Pop() []byte {
	b := q.waiting[0]
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	q.bytes -= cap(b) + EntryBytes
	if len(q.waiting) == 0 {
		q.waiting = nil
	}
	return b
}

// Len returns how many wait. q may be nil.
func (q *Queue) Len() int {
	if q == nil {
		return 0
	}
	return len(q.waiting)
}

// Memory returns the bytes of memory of those that wait. q may be nil.
func (q *Queue) Memory() int {
	if q == nil {
		return 0
	}
	return q.bytes
}

// Clear forgets those that wait.
func (q *Queue) Clear() { q.waiting, q.bytes = nil, 0 }

// Shed drops those that wait, and counts them. q may be nil.
func (q *Queue) Shed() {
	if q != nil {
		q.Stats.Dropped += uint64(len(q.waiting))
		q.Clear()
	}
}

// Refuse counts one that has arrived and is dropped.
func (q *Queue) Refuse() {
	q.Stats.Received++
	q.Stats.Dropped++
}

// Sent counts one that leaves, with so many bytes of payload.
func (q *Queue) Sent(payload int) {
	q.Stats.Sent++
	q.Moved += uint64(payload)
}
