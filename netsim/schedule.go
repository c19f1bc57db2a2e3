package netsim

import (
	"sync"
	"time"
)

// parcel is a copy of a packet underway. T says where it goes.
type parcel[T any] struct {
	at   time.Duration
	seq  uint64
	data []byte
	dest T
	via  *conduit[T] // nil for what takes no link
}

// conduit is a link in use.
type conduit[T any] struct {
	link  *Link
	local LinkStats // what happened outside of the link
}

// stats returns what has become of the packets given to c.
func (c *conduit[T]) stats() LinkStats {
	total := c.link.Stats()
	total.Delivered = Tally{} // by the link: that was a promise
	total.merge(c.local)
	return total
}

// drop counts a packet that does not come to the link.
func (c *conduit[T]) drop(size int, as *Tally) {
	c.local.Sent.add(size)
	as.add(size)
}

// schedule holds parcels by their time of arrival, and within the same instant
// in the order in which they were added. The owner's lock guards it, except for
// release, which is safe for concurrent use.
type schedule[T any] struct {
	heap  []*parcel[T]
	seq   uint64
	bytes int       // payload held
	spare sync.Pool // of *parcel[T], with their buffers
}

// send puts a packet on a link, and its copies on the schedule.
func (s *schedule[T]) send(c *conduit[T], now time.Duration, packet []byte, dest T) {
	v := c.link.plan(now, len(packet))
	for _, f := range v.flights[:v.n] {
		p := s.parcel(f, packet, dest)
		p.via = c
		s.push(p)
	}
}

func (s *schedule[T]) push(p *parcel[T]) {
	p.seq = s.seq
	s.seq++
	s.bytes += len(p.data)
	s.heap = append(s.heap, p)
	s.up(len(s.heap) - 1)
}

// parcel returns a copy of packet that is not on the schedule.
func (s *schedule[T]) parcel(f flight, packet []byte, dest T) *parcel[T] {
	p, _ := s.spare.Get().(*parcel[T])
	if p == nil {
		p = new(parcel[T])
	}
	p.at, p.dest, p.via = f.at, dest, nil
	p.data = f.copyTo(p.data[:0], packet)
	return p
}

// release takes back a parcel that is no longer needed, for its memory.
func (s *schedule[T]) release(p *parcel[T]) {
	var nowhere T
	p.dest, p.via = nowhere, nil
	s.spare.Put(p)
}

// next returns the time of the first parcel, and false if there is none.
func (s *schedule[T]) next() (time.Duration, bool) {
	if len(s.heap) == 0 {
		return 0, false
	}
	return s.heap[0].at, true
}

// due removes and returns the first parcel if its time has come, or else nil.
func (s *schedule[T]) due(now time.Duration) *parcel[T] {
	if len(s.heap) == 0 || s.heap[0].at > now {
		return nil
	}
	first, last := s.heap[0], len(s.heap)-1
	s.heap[0] = s.heap[last]
	s.heap[last] = nil
	s.heap = s.heap[:last]
	s.down(0)
	s.bytes -= len(first.data)
	return first
}

func (s *schedule[T]) less(i, j int) bool {
	a, b := s.heap[i], s.heap[j]
	return a.at < b.at || a.at == b.at && a.seq < b.seq
}

func (s *schedule[T]) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !s.less(i, parent) {
			return
		}
		s.heap[i], s.heap[parent] = s.heap[parent], s.heap[i]
		i = parent
	}
}

func (s *schedule[T]) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(s.heap) {
			return
		}
		if child+1 < len(s.heap) && s.less(child+1, child) {
			child++
		}
		if !s.less(child, i) {
			return
		}
		s.heap[i], s.heap[child] = s.heap[child], s.heap[i]
		i = child
	}
}
