package udp

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// fastConn is a socket that moves many packets with one system call (sendmmsg,
// recvmmsg), and many datagrams in one packet if the kernel supports that (UDP
// GSO and GRO).
type fastConn struct {
	pc        socket
	raw       syscall.RawConn // its callbacks run when the netpoller reports the socket ready
	family    int             // AF_INET or AF_INET6
	connected bool            // to one peer: packets carry no address
	merging   merging         // whether UDP_SEGMENT is used
	gro       bool            // UDP_GRO is set
	groBefore int             // value of the option UDP_GRO that New found
	zones     zones
	whole     whole
	info      packetInfo
	meter     meter
	in        receiver
	calls     permitted
	*refusals
	// sendmmsg and sendto are the system calls; tests replace them by ones that
	// fail.
	sendmmsg func(fd uintptr, headers []header) (int, syscall.Errno)
	sendto   func(fd uintptr, packet []byte, name *sockaddr, n uint32) syscall.Errno
}

// socket is a *net.UDPConn, or a *Detached.
type socket interface {
	syscall.Conn
	LocalAddr() net.Addr
	RemoteAddr() net.Addr
}

// newFast returns the Conn of c with those wanted features that the kernel
// supports, or nil if the portable implementation has to be used.
func newFast(c *net.UDPConn, wanted Features, r *refusals) Conn {
	if !wanted.Mmsg {
		return nil
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	f := makeFast(c, raw, r)
	works := false
	err = raw.Control(func(fd uintptr) {
		if works = f.probe(int(fd), wanted); works {
			f.whole.begin(fd, r)
		}
	})
	if err != nil || !works {
		return nil
	}
	return f
}

// makeFast returns the fastConn of c, before what it supports is known.
func makeFast(c socket, raw syscall.RawConn, r *refusals) *fastConn {
	f := &fastConn{pc: c, raw: raw, connected: c.RemoteAddr() != nil, refusals: r, sendto: sendto}
	f.calls.refusals = r
	f.sendmmsg = f.calls.sendmmsg
	f.info.zones = &f.zones
	f.in.init(f)
	return f
}

// probe finds out what the socket supports and switches on what is wanted. It
// reports false if system calls are missing that have no others in their place.
func (f *fastConn) probe(fd int, wanted Features) bool {
	if f.family = familyOf(fd); f.family == unix.AF_UNSPEC || !f.calls.probe() {
		return false
	}
	f.merging.begin(fd, wanted.GSO)
	// The option is set either way: it may be switched on in the socket that
	// New got.
	var err error
	f.groBefore, err = unix.GetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO)
	if err == nil {
		on := 0
		if wanted.GRO && segmentation() != notSegmented && !f.calls.neither(callRecvmmsg, callRecvmsg) {
			on = 1
		}
		err = unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_GRO, on)
		f.gro = on == 1 && err == nil
	}
	if wanted.GRO {
		f.option("UDP_GRO", err, "datagrams do not arrive merged")
	}
	if wantsInfo(f.pc) {
		f.info.open(fd, f.refusals)
	}
	return true
}

func (f *fastConn) Features() Features {
	mmsg := !f.calls.not[callSendmmsg].Load() && !f.calls.not[callRecvmmsg].Load()
	return Features{GSO: f.merging.on(), GRO: f.gro, Mmsg: mmsg}
}

func (f *fastConn) Merging() Merging { return f.merging.state() }

func (f *fastConn) OnRefusal(notify func(error)) {
	f.merging.tell(notify)
	f.tell(notify)
}

// Release restores the options. If UDP_GRO stayed on, another reader of the socket
// would take a merged packet for one datagram.
func (f *fastConn) Release() error {
	f.in.park()
	err := f.whole.release(f.pc)
	if e := f.raw.Control(func(fd uintptr) {
		err = errors.Join(err, f.info.restore(int(fd)))
		if f.gro != (f.groBefore != 0) {
			gro := unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_GRO, f.groBefore)
			err = errors.Join(err, os.NewSyscallError("setsockopt", gro))
		}
	}); e != nil {
		return e
	}
	return err
}

// BatchSize returns the number of datagrams in two full merged packets. Batches
// are not larger, since each element costs memory all the time. If a system
// call has received more, the next ReadBatch returns the rest.
func (f *fastConn) BatchSize() int { return 2 * maxSegments }

func (f *fastConn) ReadBatch(batch []Datagram) (int, error) { return f.in.readBatch(batch) }

func (f *fastConn) WriteBatch(batch []Datagram) (int, error) {
	if len(batch) == 1 {
		return f.writeOne(batch)
	}
	s := senders.Get().(*sender)
	s.conn = f
	n, err := s.send(batch)
	s.conn = nil
	senders.Put(s)
	return n, err
}

// writeOne is WriteBatch for a batch of one, for which the plain system call is
// faster than sendmmsg.
func (f *fastConn) writeOne(batch []Datagram) (n int, err error) {
	s := singles.Get().(*singleSender)
	if err = s.send(f, &batch[0]); f.connected && errors.Is(err, errTooLarge) {
		err = s.send(f, &batch[0]) // see errTooLarge
	}
	s.conn, s.packet = nil, nil
	singles.Put(s)
	if err != nil {
		return 0, f.opError("write", batch[0].Addr, err)
	}
	return 1, nil
}

func (f *fastConn) readArrived(batch []Datagram) int { return f.in.readArrived(batch) }

func (f *fastConn) hasReceived() bool { return f.in.open || f.in.next < f.in.filled }

func (f *fastConn) ReadQueue(q *Queue) bool { return f.meter.read(f.pc, q) }

func (f *fastConn) KeepsWhole() bool { return f.whole.holds() }

// opError wraps an error as package net does. to is the destination of a write,
// and not valid for a read.
func (f *fastConn) opError(op string, to netip.AddrPort, err error) error {
	if e, ok := err.(*net.OpError); ok {
		e.Op = op // RawConn calls it "raw-read", "raw-write" or "raw-control"
		if to.IsValid() && !f.connected {
			e.Source, e.Addr = f.pc.LocalAddr(), net.UDPAddrFromAddrPort(to)
		}
		return e
	}
	e := &net.OpError{Op: op, Net: "udp", Source: f.pc.LocalAddr(), Addr: f.pc.RemoteAddr(), Err: err}
	if e.Addr == nil && to.IsValid() {
		e.Addr = net.UDPAddrFromAddrPort(to)
	}
	return e
}
