package udp

import (
	"net/netip"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// maxSlots is the number of packets that one system call receives in dense
	// traffic.
	maxSlots = 16
	// A system call indicates dense traffic if it receives several packets, or
	// if it has a single slot and fills it without waiting. Then it raises
	// density by one, up to maxDensity; else it lowers it. Above denseAfter the
	// receiver uses maxSlots.
	denseAfter = 4
	maxDensity = 8
	// If packets are larger than largePacket bytes on average, a system call
	// uses largeSlots only, so that their content is still in the processor's
	// cache when it is processed.
	largePacket = 8 << 10
	largeSlots  = 2
)

// slab is the buffers of all slots but the first.
type slab [maxSlots - 1][readBufferSize]byte

// slabs holds the slabs that no socket uses. A socket uses one in dense traffic
// only, and not while it waits.
var slabs = sync.Pool{New: func() any { return new(slab) }}

// receiver is the reading half of a fastConn. Each slot has space for the
// largest packet, so an idle socket has only one. One goroutine at a time uses
// it.
type receiver struct {
	conn *fastConn
	read func(fd uintptr) bool // the method receive; kept, because a method value allocates
	try  func(fd uintptr)      // the method receiveArrived; likewise

	first   []byte // buffer of the first slot; nil before the first read
	others  *slab  // buffers of the other slots; nil: only the first is used
	density int    // 0 to maxDensity
	large   bool   // the packets of the last call were larger than largePacket on average
	long    bool   // the last call received more than shortCall bytes
	waited  bool   // the last call of raw.Read had to wait

	// Packets from next to filled have been received but not returned yet.
	filled, next int
	errno        syscall.Errno // of the last receive
	left         syscall.Errno // of readArrived, for the next fill; 0: none

	// The packet whose datagrams are being returned.
	open bool           // there is one
	rest []byte         // its datagrams that were not returned yet
	size int            // of its datagrams; 0: it is one datagram
	from netip.AddrPort // its sender
	to   Local          // the address that it was sent to

	headers  [maxSlots]header
	names    [maxSlots]sockaddr
	controls [maxSlots]control
	vectors  [maxSlots]unix.Iovec
}

func (r *receiver) init(c *fastConn) {
	r.conn = c
	r.read, r.try = r.receive, r.receiveArrived
	for i := range r.headers {
		h := &r.headers[i]
		h.Name = &r.names[i][0]
		h.Control = &r.controls[i].b[0]
		h.Iov = &r.vectors[i]
		h.SetIovlen(1)
		r.vectors[i].SetLen(readBufferSize)
	}
}

func (r *receiver) readBatch(batch []Datagram) (int, error) {
	if len(batch) == 0 {
		return 0, nil
	}
	for {
		if n := r.deal(batch); n > 0 {
			return n, nil
		}
		if err := r.fill(); err != nil {
			return 0, err
		}
	}
}

// deal sets elements of batch to datagrams that have been received, and returns
// how many.
func (r *receiver) deal(batch []Datagram) (n int) {
	for n < len(batch) && (r.open || r.openNext()) {
		d := &batch[n]
		d.Buf, r.rest = cut(r.rest, r.size)
		d.Addr, d.Peer, d.Local = r.from, nil, r.to
		r.open = len(r.rest) > 0
		n++
	}
	return n
}

// openNext opens the next received packet, and reports whether there is one.
func (r *receiver) openNext() bool {
	for r.next < r.filled {
		i := r.next
		r.next++
		h := &r.headers[i]
		control := r.controls[i].b[:h.Controllen]
		r.size = segmentSize(control)
		if r.size == 0 && r.conn.gro && h.Flags&unix.MSG_CTRUNC != 0 {
			continue // truncated control data: the size of its datagrams is unknown
		}
		if i == 0 {
			r.rest = r.first[:h.size]
		} else {
			r.rest = r.others[i-1][:h.size]
		}
		addr, port, scope := r.names[i].get(h.Namelen)
		if scope != 0 {
			addr = addr.WithZone(r.conn.zones.name(scope))
		}
		r.from = netip.AddrPortFrom(addr, port)
		if r.conn.info.on {
			r.to = r.conn.info.read(control)
		}
		r.open = true
		return true
	}
	return false
}

// fill waits for packets and receives them.
func (r *receiver) fill() error {
	r.filled, r.next, r.errno = 0, 0, 0
	r.waited = false
	var err error
	if r.errno, r.left = r.left, 0; r.errno == 0 {
		err = r.conn.raw.Read(r.read)
	}
	if err == nil && r.errno != 0 {
		err = os.NewSyscallError("recvmmsg", r.errno)
	}
	if err != nil {
		r.park()
		return r.conn.opError("read", netip.AddrPort{}, err)
	}
	r.measure()
	return nil
}

// measure makes density follow what was received.
func (r *receiver) measure() {
	if r.filled > 1 || (r.others == nil && !r.waited) {
		r.density = min(r.density+1, maxDensity)
	} else {
		r.density = max(r.density-1, 0)
	}
}

// readArrived is readBatch, but returns 0 where that would wait or fail. An error is
// left to the next fill.
func (r *receiver) readArrived(batch []Datagram) int {
	if n := r.deal(batch); n > 0 {
		return n
	}
	r.filled, r.next, r.errno, r.waited = 0, 0, 0, false
	if r.conn.raw.Control(r.try) != nil || r.filled == 0 {
		r.left = r.errno
		return 0
	}
	r.measure()
	return r.deal(batch)
}

// receiveArrived receives the packets that are waiting, if there are any.
func (r *receiver) receiveArrived(fd uintptr) { r.receive(fd) }

// receive receives the packets that are waiting. It reports false if there are
// none; RawConn.Read then calls it again when the socket is readable.
func (r *receiver) receive(fd uintptr) bool {
	r.unpark()
	slots := r.headers[:1]
	switch {
	case r.others == nil:
	case r.large:
		slots = r.headers[:largeSlots]
	default:
		slots = r.headers[:]
	}
	for {
		for i := range slots { // the kernel overwrites these
			slots[i].Namelen = uint32(len(r.names[i]))
			slots[i].SetControllen(len(r.controls[i].b))
		}
		n, errno := r.conn.calls.recvmmsg(fd, slots, !r.long && !delayed.Load())
		switch errno {
		case 0:
			r.filled = n
			bytes := 0
			for i := range slots[:n] {
				bytes += int(slots[i].size)
			}
			r.large, r.long = bytes > n*largePacket, bytes > shortCall
			return true
		case unix.EAGAIN:
			r.waited = true
			r.park()
			return false
		case unix.EINTR:
		default:
			r.errno = errno
			return true
		}
	}
}

// park gives back the buffers that are used in dense traffic only.
func (r *receiver) park() {
	if r.others == nil {
		return
	}
	for i := range r.others {
		r.vectors[i+1].Base = nil
	}
	slabs.Put(r.others)
	r.others = nil
}

// unpark allocates the buffers that the traffic calls for.
func (r *receiver) unpark() {
	if r.first == nil {
		r.first = make([]byte, readBufferSize)
		r.vectors[0].Base = &r.first[0]
	}
	switch dense := r.density > denseAfter && !r.conn.calls.not[callRecvmmsg].Load(); {
	case !dense:
		r.park()
	case r.others == nil:
		r.others = slabs.Get().(*slab)
		for i := range r.others {
			r.vectors[i+1].Base = &r.others[i][0]
		}
	}
}
