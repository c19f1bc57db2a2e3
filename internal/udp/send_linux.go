package udp

import (
	"net"
	"os"
	"sync"
	"syscall"

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
	s.write = s.flush
	return s
}}

// sender is one WriteBatch in progress. The kernel gathers the datagrams of a
// packet from their buffers; nothing is copied.
type sender struct {
	conn  *fastConn             // nil in the pool
	write func(fd uintptr) bool // the method flush; kept, because a method value allocates

	plan   []int         // number of datagrams of each packet
	loaded int           // number of datagrams in all
	sent   int           // number of packets sent
	errno  syscall.Errno // of the packet after those; 0: none

	runs     [maxPackets]int // space for plan
	headers  [maxPackets]header
	names    [maxPackets]sockaddr
	controls [maxPackets]segmentControl
	vectors  [maxDatagrams]unix.Iovec
}

// send is WriteBatch. If a merged packet fails, its datagrams and those behind
// it are sent again one by one. So an error always concerns one datagram, and a
// problem of the merged packet alone is no error.
//
// Some interfaces refuse merged packets with EIO or EINVAL. If the first
// datagram of such a packet can then be sent alone, merging was the cause, and
// the socket no longer merges. If not, the datagram was the cause, such as one
// to port 0, which must not slow down all others.
func (s *sender) send(batch []Datagram) (n int, err error) {
	c := s.conn
	merge := c.gso.Load()
	suspected := false
	for n < len(batch) {
		if err := s.load(batch[n:], merge); err != nil {
			return n, c.opError("write", batch[n].Addr, err)
		}
		err := c.raw.Write(s.write)
		clear(s.vectors[:s.loaded]) // a sender in the pool must not keep packets alive
		for _, run := range s.plan[:s.sent] {
			n += run
		}
		if suspected && s.sent > 0 {
			c.gso.Store(false)
		}
		suspected = false
		switch {
		case err != nil:
			return n, c.opError("write", batch[n].Addr, err)
		case s.errno == 0:
		case s.plan[s.sent] > 1:
			merge = false
			suspected = s.errno == unix.EIO || s.errno == unix.EINVAL
		default:
			err := os.NewSyscallError("sendmmsg", s.errno)
			return n, c.opError("write", batch[n].Addr, err)
		}
	}
	return n, nil
}

// load prepares the packets of one system call. It fails if the socket cannot
// send to the first address. If it cannot send to a later one, it loads the
// packets before that.
func (s *sender) load(batch []Datagram, merge bool) error {
	s.plan = plan(s.runs[:0], batch, maxDatagrams, merge)
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
		h.Control = nil
		h.SetControllen(0)
		if run > 1 {
			s.controls[i].put(len(batch[0].Buf))
			h.Control = &s.controls[i].b[0]
			h.SetControllen(segmentControlSize())
		}
		s.loaded += run
		batch = batch[run:]
	}
	return nil
}

// address sets the destination of packet i to that of the first datagram of
// batch.
func (s *sender) address(i int, batch []Datagram) error {
	h, to := &s.headers[i], batch[0].Addr
	if s.conn.connected {
		h.Name, h.Namelen = nil, 0
		return nil
	}
	var scope uint32
	if zone := to.Addr().Zone(); zone != "" {
		scope = s.conn.zones.index(zone)
	}
	h.Name = &s.names[i][0]
	h.Namelen = s.names[i].put(s.conn.family, to, scope)
	if h.Namelen == 0 {
		return &net.AddrError{Err: "address of another family than the socket's", Addr: to.String()}
	}
	return nil
}

// flush sends the packets that are loaded. It reports false if the socket has
// to become writable first; RawConn.Write then calls it again.
func (s *sender) flush(fd uintptr) bool {
	for s.sent < len(s.plan) {
		n, errno := s.conn.sendmmsg(fd, s.headers[s.sent:len(s.plan)])
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
