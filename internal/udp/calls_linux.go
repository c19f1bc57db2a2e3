package udp

import (
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A sandbox (seccomp) may refuse each system call by which packets pass, with any error:
// EPERM is also what a firewall returns for one packet, and EINVAL what a driver does. A
// sandbox refuses a call whatever its descriptor is. So a call that has failed is made
// again with none: the error of a system that permits it is EBADF then.

// call is a system call by which packets pass.
type call uint8

const (
	callRecvmmsg call = iota
	callRecvmsg
	callSendmmsg
	callSendmsg
	callSendto
	callRecvfrom // the last resort; only probe asks for it
	calls
)

// known returns the number and the name of a call, and what follows if it is refused.
func (c call) known() (number uintptr, name, then string) {
	switch c {
	case callRecvmmsg:
		return unix.SYS_RECVMMSG, "recvmmsg", "packets are received one by one"
	case callRecvmsg:
		return unix.SYS_RECVMSG, "recvmsg", "packets are received by other calls"
	case callSendmmsg:
		return unix.SYS_SENDMMSG, "sendmmsg", "packets are sent one by one"
	case callSendmsg:
		return unix.SYS_SENDMSG, "sendmsg", "packets are sent by other calls"
	case callSendto:
		return unix.SYS_SENDTO, "sendto", "packets are sent by other calls"
	}
	return unix.SYS_RECVFROM, "recvfrom", "no packets are received"
}

// refusal returns the error with which the system refuses a call; 0: it permits it.
func (c call) refusal() syscall.Errno {
	number, _, _ := c.known()
	_, _, errno := unix.RawSyscall6(number, ^uintptr(0), 0, 0, 0, 0, 0)
	switch errno {
	case unix.EBADF, unix.EFAULT, unix.ENOTSOCK: // the last two in place of the first, by emulators
		return 0
	}
	return errno
}

// do makes a call for the first packets; short is as for recvmmsg.
func (c call) do(fd uintptr, headers []header, short bool) (n int, errno syscall.Errno) {
	number, _, _ := c.known()
	if c == callRecvmmsg || c == callSendmmsg {
		return mmsg(number, fd, headers, short)
	}
	return one(number, fd, &headers[0], short)
}

// permitted is which calls the system permits to a socket. It is safe for concurrent use.
type permitted struct {
	not [calls]atomic.Bool
	*refusals
}

// newPermitted returns a permitted that takes all calls to be permitted.
func newPermitted(r *refusals) *permitted { return &permitted{refusals: r} }

// probe finds out which calls are permitted, and reports whether those are enough.
func (p *permitted) probe() bool {
	for c := range callRecvfrom {
		if errno := c.refusal(); errno != 0 {
			p.forbid(c, errno)
		}
	}
	return (!p.neither(callRecvmmsg, callRecvmsg) || callRecvfrom.refusal() == 0) &&
		!(p.neither(callSendmmsg, callSendmsg) && p.not[callSendto].Load())
}

// neither reports whether two calls are refused.
func (p *permitted) neither(one, other call) bool { return p.not[one].Load() && p.not[other].Load() }

// refuses reports whether errno, with which a call has failed, is of a sandbox.
func (p *permitted) refuses(c call, errno syscall.Errno) bool {
	if errno == unix.EAGAIN || errno == unix.EINTR || errno != c.refusal() {
		return false
	}
	p.forbid(c, errno)
	return true
}

// forbid records that a call is refused.
func (p *permitted) forbid(c call, errno syscall.Errno) {
	if p.not[c].Swap(true) {
		return
	}
	_, name, then := c.known()
	p.add(&CallError{name, errno, then})
	switch {
	case (c == callRecvmmsg || c == callRecvmsg) && p.neither(callRecvmmsg, callRecvmsg):
		p.add(&CallError{"recvmmsg and recvmsg", errno, "datagrams do not arrive merged, and " + infoRefused})
	case (c == callSendmmsg || c == callSendmsg) && p.neither(callSendmmsg, callSendmsg):
		p.add(&CallError{"sendmmsg and sendmsg", errno, "datagrams do not leave merged, and " + infoRefused})
	}
}

// either makes the first of two calls, or the second if the first is refused. With
// neither nothing is done.
func (p *permitted) either(first, second call, fd uintptr, headers []header, short bool) (n int, errno syscall.Errno, neither bool) {
	for _, c := range [...]call{first, second} {
		if p.not[c].Load() {
			continue
		}
		n, errno = c.do(fd, headers, short)
		if errno == 0 || !p.refuses(c, errno) {
			return n, errno, false
		}
	}
	return 0, errno, true
}

// sendmmsg sends the first n packets without blocking. It fails only if the first of them
// does. The call for a single packet is faster.
func (p *permitted) sendmmsg(fd uintptr, headers []header) (n int, errno syscall.Errno) {
	if len(headers) == 1 {
		return p.sendmsg(fd, &headers[0], false)
	}
	n, errno, neither := p.either(callSendmmsg, callSendmsg, fd, headers, false)
	if neither {
		return plainSend(fd, &headers[0])
	}
	return n, errno
}

// sendmsg is sendmmsg for a single packet.
func (p *permitted) sendmsg(fd uintptr, h *header, short bool) (n int, errno syscall.Errno) {
	n, errno, neither := p.either(callSendmsg, callSendmmsg, fd, unsafe.Slice(h, 1), short)
	if neither {
		return plainSend(fd, h)
	}
	return n, errno
}

// plainSend sends a packet by sendto, without its control messages. A merged packet fails
// as on a system that cannot merge.
func plainSend(fd uintptr, h *header) (n int, errno syscall.Errno) {
	if h.Iovlen != 1 {
		return 0, unix.EINVAL
	}
	packet := unsafe.Slice(h.Iov.Base, h.Iov.Len)
	if errno = sendto(fd, packet, (*sockaddr)(unsafe.Pointer(h.Name)), h.Namelen); errno != 0 {
		return 0, errno
	}
	h.size = uint32(len(packet))
	return 1, 0
}

// recvmmsg receives n packets without blocking. short says that there are probably no
// more than shortCall bytes.
func (p *permitted) recvmmsg(fd uintptr, headers []header, short bool) (n int, errno syscall.Errno) {
	first, second := callRecvmmsg, callRecvmsg
	if len(headers) == 1 {
		first, second = second, first
	}
	already := p.neither(first, second)
	n, errno, neither := p.either(first, second, fd, headers, short)
	if !neither {
		return n, errno
	}
	if !already {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_GRO, 0) // recvfrom does not tell sizes
	}
	return plainReceive(fd, &headers[0])
}

// plainReceive receives a packet by recvfrom, without control messages.
func plainReceive(fd uintptr, h *header) (n int, errno syscall.Errno) {
	size, _, errno := unix.Syscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(h.Iov.Base)), uintptr(h.Iov.Len),
		unix.MSG_DONTWAIT, uintptr(unsafe.Pointer(h.Name)), uintptr(unsafe.Pointer(&h.Namelen)))
	if errno != 0 {
		return 0, errno
	}
	h.SetControllen(0)
	h.Flags, h.size = 0, uint32(size)
	return 1, 0
}

// messagesRefused returns an error if recvmsg or sendmsg is refused, which the portable
// path needs for local addresses.
func messagesRefused() error {
	for _, c := range []call{callRecvmsg, callSendmsg} {
		if errno := c.refusal(); errno != 0 {
			_, name, _ := c.known()
			return &CallError{name, errno, infoRefused}
		}
	}
	return nil
}

// Check returns an error if the system refuses what no socket can do without.
func Check(c *net.UDPConn) error {
	if c.LocalAddr() == nil {
		_, err := unix.Getsockname(-1)
		return os.NewSyscallError("getsockname", err)
	}
	if callRecvmmsg.refusal() != 0 && callRecvmsg.refusal() != 0 {
		if _, _, err := unix.Recvfrom(-1, nil, 0); err != unix.EBADF {
			return os.NewSyscallError("recvfrom", err)
		}
	}
	if callSendmmsg.refusal() != 0 && callSendmsg.refusal() != 0 && c.RemoteAddr() == nil {
		if err := unix.Sendto(-1, nil, 0, new(unix.SockaddrInet4)); err != unix.EBADF {
			return os.NewSyscallError("sendto", err)
		}
	}
	return nil
}
