package udp

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// header is the kernel's struct mmsghdr. Go pads it to the same size, since its
// alignment is Msghdr's.
type header struct {
	unix.Msghdr
	size uint32 // of the packet: bytes sent or received
}

// shortCall is how many bytes a short system call moves at most.
//
// Short calls are made without a word to Go's scheduler (RawSyscall). If the
// program was idle, an ordinary call wakes the thread sysmon, which then runs
// until the program is idle again. A server that handles a message now and then
// spent a third of its time on that. No short call blocks, as all have
// MSG_DONTWAIT. Long ones are ordinary calls: the garbage collector cannot stop
// the goroutine during a raw one. In a process that lacks processor time all are
// (see Delayed).
const shortCall = 16 << 10

// raw reports whether a call that moves n bytes is to be a raw one.
func raw(n int) bool { return n <= shortCall && !delayed.Load() }

// sendto sends one packet without blocking, to the address in the first n bytes
// of name, or to the peer of a connected socket if n is 0.
func sendto(fd uintptr, packet []byte, name *sockaddr, n uint32) (errno syscall.Errno) {
	var to unsafe.Pointer
	if n > 0 {
		to = unsafe.Pointer(name)
	}
	data := unsafe.Pointer(unsafe.SliceData(packet))
	if raw(len(packet)) {
		_, _, errno = unix.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(data), uintptr(len(packet)), unix.MSG_DONTWAIT, uintptr(to), uintptr(n))
	} else {
		_, _, errno = unix.Syscall6(unix.SYS_SENDTO, fd, uintptr(data), uintptr(len(packet)), unix.MSG_DONTWAIT, uintptr(to), uintptr(n))
	}
	return errno
}

// one makes the system call for a single packet, which is faster.
func one(call, fd uintptr, h *header, short bool) (int, syscall.Errno) {
	var size uintptr
	var errno syscall.Errno
	if short {
		size, _, errno = unix.RawSyscall(call, fd, uintptr(unsafe.Pointer(&h.Msghdr)), unix.MSG_DONTWAIT)
	} else {
		size, _, errno = unix.Syscall(call, fd, uintptr(unsafe.Pointer(&h.Msghdr)), unix.MSG_DONTWAIT)
	}
	if errno != 0 {
		return 0, errno
	}
	h.size = uint32(size)
	return 1, 0
}

// mmsg makes one of the two system calls. They take the same arguments except
// for a time-out of recvmmsg, which is none here. No package has a function for
// them, so a pointer has to be passed by hand. The memory it points to holds
// typed pointers only, which the garbage collector sees.
func mmsg(call, fd uintptr, headers []header, short bool) (int, syscall.Errno) {
	var n uintptr
	var errno syscall.Errno
	if short {
		n, _, errno = unix.RawSyscall6(call, fd,
			uintptr(unsafe.Pointer(unsafe.SliceData(headers))), uintptr(len(headers)),
			unix.MSG_DONTWAIT, 0, 0)
	} else {
		n, _, errno = unix.Syscall6(call, fd,
			uintptr(unsafe.Pointer(unsafe.SliceData(headers))), uintptr(len(headers)),
			unix.MSG_DONTWAIT, 0, 0)
	}
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// sockaddr is an IPv4 or IPv6 address in the kernel's form. All fields are in
// network byte order, except for the family and the scope.
type sockaddr [unix.SizeofSockaddrInet6]byte

// put encodes an address for a socket of the given family. It returns the
// encoded length, or 0 if such a socket cannot send to the address.
func (s *sockaddr) put(family int, to netip.AddrPort, scope uint32) uint32 {
	addr := to.Addr()
	binary.NativeEndian.PutUint16(s[0:], uint16(family))
	binary.BigEndian.PutUint16(s[2:], to.Port())
	switch {
	case !addr.IsValid():
		return 0
	case family == unix.AF_INET6:
		ip := addr.As16() // IPv4 is mapped
		clear(s[4:8])
		copy(s[8:], ip[:])
		binary.NativeEndian.PutUint32(s[24:], scope)
		return unix.SizeofSockaddrInet6
	case addr.Unmap().Is4():
		ip := addr.Unmap().As4()
		copy(s[4:], ip[:])
		clear(s[8:16])
		return unix.SizeofSockaddrInet4
	}
	return 0
}

// get decodes an address of the given length. addr is not valid if the address
// is of neither family.
func (s *sockaddr) get(length uint32) (addr netip.Addr, port uint16, scope uint32) {
	if length < unix.SizeofSockaddrInet4 {
		return netip.Addr{}, 0, 0
	}
	port = binary.BigEndian.Uint16(s[2:])
	switch binary.NativeEndian.Uint16(s[0:]) {
	case unix.AF_INET:
		return netip.AddrFrom4([4]byte(s[4:8])), port, 0
	case unix.AF_INET6:
		addr = netip.AddrFrom16([16]byte(s[8:24])).Unmap()
		if addr.Is6() {
			scope = binary.NativeEndian.Uint32(s[24:])
		}
		return addr, port, scope
	}
	return netip.Addr{}, 0, 0
}

// control is space for received control messages, in the kernel's alignment. It
// also has space for messages that the program may have enabled on its socket:
// if UDP_GRO's did not fit, a merged packet could not be cut.
type control struct {
	_ [0]uint64
	b [256]byte
}

// segmentControl is space for the control messages of a sent packet: the size of its
// datagrams, and the local address.
type segmentControl struct {
	_ [0]uint64
	b [24 + infoSpace]byte
}

// segmentControlSize returns the length of what put encodes.
func segmentControlSize() int { return unix.CmsgSpace(2) }

// put encodes the size of the datagrams that the kernel is to cut a packet
// into.
func (c *segmentControl) put(size int) {
	putControlHeader(c.b[:], unix.UDP_SEGMENT, 2)
	binary.NativeEndian.PutUint16(c.b[unix.CmsgLen(0):], uint16(size))
}

// Offsets of the fields of a control message's header behind its length, which
// has the size of a pointer.
const (
	controlLevel = unix.SizeofPtr
	controlType  = unix.SizeofPtr + 4
)

// putControlHeader encodes the header of a UDP control message with n bytes of
// data.
func putControlHeader(b []byte, typ, n int) {
	length := unix.CmsgLen(n)
	if unix.SizeofPtr == 8 {
		binary.NativeEndian.PutUint64(b, uint64(length))
	} else {
		binary.NativeEndian.PutUint32(b, uint32(length))
	}
	binary.NativeEndian.PutUint32(b[controlLevel:], unix.SOL_UDP)
	binary.NativeEndian.PutUint32(b[controlType:], uint32(typ))
}

// segmentSize returns the size of the datagrams that a packet was merged from,
// from its control messages b; 0 if it is a single datagram.
func segmentSize(b []byte) int {
	for len(b) >= unix.SizeofCmsghdr {
		var length uint64
		if unix.SizeofPtr == 8 {
			length = binary.NativeEndian.Uint64(b)
		} else {
			length = uint64(binary.NativeEndian.Uint32(b))
		}
		if length < unix.SizeofCmsghdr || length > uint64(len(b)) {
			return 0
		}
		if binary.NativeEndian.Uint32(b[controlLevel:]) == unix.SOL_UDP &&
			binary.NativeEndian.Uint32(b[controlType:]) == unix.UDP_GRO &&
			int(length) >= unix.CmsgLen(4) {
			return int(int32(binary.NativeEndian.Uint32(b[unix.CmsgLen(0):])))
		}
		b = b[min(len(b), unix.CmsgSpace(int(length)-unix.CmsgLen(0))):]
	}
	return 0
}
