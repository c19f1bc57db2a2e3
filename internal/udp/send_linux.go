package udp

import (
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	maxPackets   = 64  // per system call
	maxDatagrams = 256 // in the packets of one system call
)

// senders holds the working memory of WriteBatch. So its calls neither wait for
// each other nor allocate, and a socket holds none between them.
var senders = sync.Pool{New: func() any {
	s := new(sender)
	s.write, s.ask = s.flush, s.refused
	return s
}}

// sender is one WriteBatch in progress. The kernel gathers the datagrams of a
// packet from their buffers; nothing is copied.
type sender struct {
	conn   *fastConn                 // nil in the pool
	write  func(fd uintptr) bool     // the method flush; kept, because a method value allocates
	ask    func(netip.AddrPort) bool // the method refused; likewise
	avoid  netip.AddrPort            // no datagrams to it are merged in this batch
	avoids bool                      // there is one

	plan   []int // number of datagrams of each packet
	absent Local // packets leave without it: the host does not have that address

	loaded int           // number of datagrams in all
	sent   int           // number of packets sent
	errno  syscall.Errno // of the packet after those; 0: none

	runs     [maxPackets]int // space for plan
	headers  [maxPackets]header
	names    [maxPackets]sockaddr
	controls [maxPackets]segmentControl
	vectors  [maxDatagrams]unix.Iovec
}

// send is WriteBatch. If a merged packet fails, its datagrams, and the ones of the
// batch to the same address, are sent again one by one. So an error always
// concerns one datagram, and a problem of the merged packet alone is not an error.
//
// Some routes and interfaces refuse merged packets with EIO or EINVAL, older
// kernels also merged packets of datagrams that are larger than the route takes. If the
// first datagram of such a packet can then be sent alone, merging was the cause,
// and merging remembers it for the address. If not, the datagram was the cause,
// such as one to port 0, which must not slow down all others.
func (s *sender) send(batch []Datagram) (n int, err error) {
	c := s.conn
	s.avoids, s.absent = false, Local{}
	var suspected syscall.Errno // of the merged packet whose first datagram is next
	repeated := -1              // index of the last datagram that was sent twice
	for n < len(batch) {
		if batch[n].Cut {
			if _, err := c.writeOne(batch[n : n+1]); err != nil {
				return n, err
			}
			n++
			continue
		}
		if err := s.load(batch[n:], c.merging.on()); err != nil {
			return n, c.opError("write", batch[n].Addr, err)
		}
		err := c.raw.Write(s.write)
		clear(s.vectors[:s.loaded]) // a sender in the pool must not keep packets alive
		if suspected != 0 && s.sent > 0 {
			c.merging.refuse(s.avoid.Addr(), suspected)
		}
		suspected = 0
		for _, run := range s.plan[:s.sent] {
			if n += run; run > 1 {
				c.merging.worked()
			}
		}
		switch {
		case err != nil:
			return n, c.opError("write", batch[n].Addr, err)
		case s.errno == 0:
		case s.plan[s.sent] > 1:
			s.avoid, s.avoids = batch[n].Addr, true
			if s.errno == unix.EIO || s.errno == unix.EINVAL {
				suspected = s.errno
			}
		case s.withoutLocal(batch[n].Local):
		case s.errno == errTooLarge && c.connected && repeated != n:
			repeated = n
		default:
			err := os.NewSyscallError("sendmmsg", s.errno)
			return n, c.opError("write", batch[n].Addr, err)
		}
	}
	return n, nil
}

// refused reports whether datagrams to an address are not merged.
func (s *sender) refused(addr netip.AddrPort) bool {
	return s.avoids && addr == s.avoid || s.conn.merging.refuses(addr.Addr())
}

// load prepares the packets of one system call. It fails if the socket cannot
// send to the first address. If it cannot send to a later one, it loads the
// packets before that.
func (s *sender) load(batch []Datagram, merge bool) error {
	ask := s.ask
	if !s.avoids && !s.conn.merging.refusesAny() {
		ask = nil
	}
	s.plan = plan(s.runs[:0], batch, maxDatagrams, merge, ask)
	s.loaded, s.sent, s.errno = 0, 0, 0
	for i, run := range s.plan {
		h := &s.headers[i]
		vectors := s.vectors[s.loaded:]
		if err := s.address(i, batch); err != nil {
			s.plan = s.plan[:i]
			if i == 0 {
				return err
			}
			break
		}
		for j := range batch[:run] {
			if buf := batch[j].Buf; len(buf) > 0 {
				vectors[j].Base = &buf[0]
				vectors[j].SetLen(len(buf))
			}
		}
		h.Iov = &vectors[0]
		h.SetIovlen(run)
		s.control(i, run, &batch[0])
		s.loaded += run
		batch = batch[run:]
	}
	return nil
}

// address sets the destination of packet i to the one of the first datagram of
// batch.
func (s *sender) address(i int, batch []Datagram) (err error) {
	h := &s.headers[i]
	if s.conn.connected {
		h.Name, h.Namelen = nil, 0
		return nil
	}
	h.Name = &s.names[i][0]
	h.Namelen, err = s.conn.encode(&s.names[i], batch[0].Addr)
	return err
}

// control sets the control messages of packet i, which has n datagrams like d.
func (s *sender) control(i, n int, d *Datagram) {
	h, c := &s.headers[i], &s.controls[i]
	size := 0
	if n > 1 {
		c.put(len(d.Buf))
		size = segmentControlSize()
	}
	if d.Local != s.absent {
		size += s.conn.info.put(c.b[size:], d.Local)
	}
	h.Control = nil
	if h.SetControllen(size); size > 0 {
		h.Control = &c.b[0]
	}
}

// withoutLocal reports whether a packet that has failed is to be sent without its local
// address, and then others with that address too. If it fails again, that was not the
// cause.
func (s *sender) withoutLocal(l Local) bool {
	if !s.conn.info.on || !refusesSource(s.errno) || l == s.absent {
		s.absent = Local{}
		return false
	}
	s.absent = l
	return true
}

// singles holds the working memory of writeOne.
var singles = sync.Pool{New: func() any {
	s := new(singleSender)
	s.write, s.attempt, s.call = s.flush, s.try, s.sendto
	return s
}}

// singleSender is the sending of one datagram.
type singleSender struct {
	conn    *fastConn             // nil in the pool
	write   func(fd uintptr) bool // the method flush; kept, because a method value allocates
	attempt func(fd uintptr)      // the method try; likewise
	call    func()                // the method sendto; likewise
	fd      uintptr               // for call
	packet  []byte
	cut     bool // it may be fragmented
	name    sockaddr
	size    uint32        // of name; 0: the socket is connected
	control int           // length of from.control; 0: the packet leaves without a local address
	errno   syscall.Errno // 0: it was sent
	from    struct {      // for sendmsg
		header  header
		vector  unix.Iovec
		control segmentControl
	}
}

func (s *singleSender) send(c *fastConn, d *Datagram) error {
	s.conn, s.packet, s.cut, s.size, s.errno = c, d.Buf, d.Cut, 0, 0
	s.control = c.info.put(s.from.control.b[:], d.Local)
	if !c.connected {
		var err error
		if s.size, err = c.encode(&s.name, d.Addr); err != nil {
			return err
		}
	}
	// RawConn.Write lets one goroutine at a time write, and the others wait. The
	// kernel needs no such lock, so only a datagram that has to wait for the
	// socket is written that way.
	err := c.raw.Control(s.attempt)
	if err == nil && s.errno == unix.EAGAIN {
		err = c.raw.Write(s.write)
	}
	if err == nil && s.errno != 0 {
		err = os.NewSyscallError("sendto", s.errno)
	}
	return err
}

// try sends the packet if it need not wait.
func (s *singleSender) try(fd uintptr) { s.flush(fd) }

// flush is sender's flush.
func (s *singleSender) flush(fd uintptr) bool {
	for s.fd = fd; ; {
		s.conn.whole.write(fd, s.cut, s.call)
		switch {
		case s.errno == unix.EAGAIN:
			return false
		case s.errno == unix.EINTR:
		case s.control > 0 && refusesSource(s.errno):
			s.control = 0 // the host does not have that address
		default:
			return true
		}
	}
}

// sendto makes the system call: sendmsg for a packet with a local address, or if sendto
// is refused.
func (s *singleSender) sendto() {
	calls := &s.conn.calls
	if s.control == 0 && !calls.not[callSendto].Load() {
		s.errno = s.conn.sendto(s.fd, s.packet, &s.name, s.size)
		if s.errno == 0 || !calls.refuses(callSendto, s.errno) {
			return
		}
	}
	s.errno = s.sendFrom(s.fd)
}

// sendFrom sends the packet by sendmsg, from its local address if it has one.
func (s *singleSender) sendFrom(fd uintptr) syscall.Errno {
	h := &s.from.header
	h.Name, h.Namelen = nil, s.size
	if s.size > 0 {
		h.Name = &s.name[0]
	}
	h.Iov = &s.from.vector
	h.SetIovlen(1)
	s.from.vector.Base = unsafe.SliceData(s.packet)
	s.from.vector.SetLen(len(s.packet))
	h.Control = nil
	if s.control > 0 {
		h.Control = &s.from.control.b[0]
	}
	h.SetControllen(s.control)
	_, errno := s.conn.calls.sendmsg(fd, h, raw(len(s.packet)))
	s.from.vector.Base = nil // a sender in the pool must not keep packets alive
	return errno
}

// encode puts an address into the kernel's form, and returns its size.
func (f *fastConn) encode(name *sockaddr, to netip.AddrPort) (size uint32, err error) {
	var scope uint32
	if zone := to.Addr().Zone(); zone != "" {
		scope = f.zones.index(zone)
	}
	if size = name.put(f.family, to, scope); size == 0 {
		return 0, &net.AddrError{Err: "address family differs from the socket's", Addr: to.String()}
	}
	return size, nil
}

// flush sends the packets that are loaded. It reports false if the socket has
// to become writable first; RawConn.Write then calls it again.
func (s *sender) flush(fd uintptr) bool {
	for s.sent < len(s.plan) {
		s.conn.whole.mu.RLock()
		n, errno := s.conn.sendmmsg(fd, s.headers[s.sent:len(s.plan)])
		s.conn.whole.mu.RUnlock()
		switch errno {
		case 0:
			s.sent += n
		case unix.EAGAIN:
			return false
		case unix.EINTR:
		default:
			s.errno = errno
			return true
		}
	}
	return true
}
