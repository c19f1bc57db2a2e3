package udp

import (
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	maxPackets   = 64  // of one system call
	maxDatagrams = 256 // in the packets of one system call
)

// senders holds what WriteBatch works with, so that calls of it need neither
// wait for each other nor allocate, and a socket holds nothing between them.
var senders = sync.Pool{New: func() any {
	s := new(sender)
	s.write = s.flush
	return s
}}

// sender is one WriteBatch at work. The kernel gathers the datagrams of a packet
// from where they are; nothing is copied.
type sender struct {
	conn  *fastConn
	write func(fd uintptr) bool // flush; made once, since that allocates

	plan   []int // datagrams of each packet
	loaded int   // datagrams in all
	sent   int   // packets sent
	errno  syscall.Errno

	runs     [maxPackets]int // space for plan
	headers  [maxPackets]header
	names    [maxPackets]sockaddr
	controls [maxPackets]segmentControl
	vectors  [maxDatagrams]unix.Iovec
}

// send is WriteBatch. Where a merged packet fails, its datagrams and those
// behind them are sent again, each on its own: so an error is that of one
// datagram, and what is only wrong with the packet is no error.
//
// Some interfaces take no merged packets, with EIO or EINVAL. If the datagram
// is sent after all when it is alone, merging was to blame, and the socket does
// without from then on. If not, the datagram was, such as one to port 0, and
// that must not slow down all others.
func (s *sender) send(batch []Datagram) (n int, err error) {
	c := s.conn
	merge := c.gso.Load()
	suspected := false
	for n < len(batch) {
		if err := s.load(batch[n:], merge); err != nil {
			return n, c.opError("write", batch[n].Addr, err)
		}
		err := c.raw.Write(s.write)
		clear(s.vectors[:s.loaded]) // a sender in the pool keeps no packets alive
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
// send to the first address; where it is a later one, it loads what is before.
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

// address sets the destination of packet i to that of the first of batch.
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

// flush sends the packets. It is false when the socket has to become writable
// first, and is then called again.
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
