package udp

import (
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// fastConn is a socket that moves many packets with one system call, and many
// datagrams in one packet where the kernel offers that.
type fastConn struct {
	pc        *net.UDPConn
	raw       syscall.RawConn // its callbacks run when the netpoller sees fit
	family    int             // AF_INET or AF_INET6
	connected bool            // packets carry no address
	gso       atomic.Bool     // cleared when it turns out not to work
	gro       bool
	groBefore int // option UDP_GRO as New found it
	zones     zones
	probing   probing
	in        receiver
	// sendmmsg is the system call; tests put one in its place that fails.
	sendmmsg func(fd uintptr, headers []header) (int, syscall.Errno)
}

// newFast returns the Conn of c with the wanted features that the kernel has,
// or nil where the portable way has to do.
func newFast(c *net.UDPConn, wanted Features) Conn {
	if !wanted.Mmsg {
		return nil
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	f := &fastConn{pc: c, raw: raw, connected: c.RemoteAddr() != nil, sendmmsg: sendmmsg}
	f.in.init(f)
	works := false
	err = raw.Control(func(fd uintptr) { works = f.probe(int(fd), wanted) })
	if err != nil || !works {
		return nil
	}
	return f
}

// probe finds out what the socket can do and switches on what is wanted. It is
// false where the system calls are missing, which sandboxes do.
func (f *fastConn) probe(fd int, wanted Features) bool {
	var err error
	f.family, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil || (f.family != unix.AF_INET && f.family != unix.AF_INET6) {
		return false
	}
	if _, errno := sendmmsg(uintptr(fd), nil); errno != 0 {
		return false
	}
	if _, errno := recvmmsg(uintptr(fd), nil); errno == unix.ENOSYS {
		return false // other errors may be news of a packet sent before
	}
	if wanted.GSO {
		_, err := unix.GetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT)
		f.gso.Store(err == nil)
	}
	// The option is set in both ways: a socket may come with it switched on.
	f.groBefore, err = unix.GetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO)
	if err == nil {
		on := 0
		if wanted.GRO {
			on = 1
		}
		err = unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, on)
		f.gro = wanted.GRO && err == nil
	}
	return true
}

func (f *fastConn) Features() Features {
	return Features{GSO: f.gso.Load(), GRO: f.gro, Mmsg: true}
}

// Release restores the option for joined packets, without which another reader
// of the socket would take many datagrams for one.
func (f *fastConn) Release() error {
	f.in.park()
	if f.gro == (f.groBefore != 0) {
		return nil
	}
	var err error
	if e := f.raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_GRO, f.groBefore)
	}); e != nil {
		return e
	}
	return os.NewSyscallError("setsockopt", err)
}

// BatchSize is enough for two packets of as many datagrams as can be joined.
// Batches are not larger, since each element costs memory all the time; what a
// system call has brought beyond that is returned by the next ReadBatch.
func (f *fastConn) BatchSize() int { return 2 * maxSegments }

func (f *fastConn) ReadBatch(batch []Datagram) (int, error) { return f.in.readBatch(batch) }

func (f *fastConn) WriteBatch(batch []Datagram) (int, error) {
	if len(batch) == 1 {
		return f.writeOne(&batch[0])
	}
	s := senders.Get().(*sender)
	s.conn = f
	n, err := s.send(batch)
	s.conn = nil
	senders.Put(s)
	return n, err
}

// writeOne writes a batch of one, for which the plain system call is faster.
func (f *fastConn) writeOne(d *Datagram) (n int, err error) {
	if _, err = writeTo(f.pc, f.connected, d.Buf, d.Addr); err != nil {
		return 0, err
	}
	return 1, nil
}

func (f *fastConn) WriteProbe(d *Datagram) error { return f.probing.write(f.pc, f.connected, d) }

func (f *fastConn) CanProbe() bool { return canProbe }

// opError wraps an error as package net does. to is the destination of a write,
// where there is one.
func (f *fastConn) opError(op string, to netip.AddrPort, err error) error {
	if e, ok := err.(*net.OpError); ok {
		e.Op = op // RawConn calls it "raw-read" or "raw-write"
		return e
	}
	e := &net.OpError{Op: op, Net: "udp", Source: f.pc.LocalAddr(), Addr: f.pc.RemoteAddr(), Err: err}
	if e.Addr == nil && to.IsValid() {
		e.Addr = net.UDPAddrFromAddrPort(to)
	}
	return e
}
