//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package udp

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// infoOption is a socket option by which datagrams get control messages.
type infoOption struct {
	level, name int
	text        string // its name
}

// infoSize6 is the size of an in6_pktinfo: an address, and the number of an interface.
const infoSize6 = 20

// infoSpace is the space that the control message of a local address takes.
const infoSpace = unix.SizeofCmsghdr + 8 + infoSize6 + 8

// packetInfo has the local addresses of datagrams in the control messages of a socket
// (RFC 3542 §6). Only one that is bound to no address needs them: the answer to a
// datagram must leave from the address that its peer has sent to, which is not always
// the one that the system would choose. It is off for others. The zero value is off.
type packetInfo struct {
	on       bool    // datagrams have local addresses
	switched [2]bool // open has switched the option on; parallel to infoOptions
	zones    *zones

	// What the last datagram had, which the next one has mostly. The reader uses it.
	last      netip.Addr // without zone
	lastIndex uint32     // of the interface; 0: not link-local
	lastLocal Local
}

// wantsInfo reports whether a socket may get datagrams for several addresses.
func wantsInfo(c interface {
	LocalAddr() net.Addr
	RemoteAddr() net.Addr
}) bool {
	local, ok := c.LocalAddr().(*net.UDPAddr)
	return ok && c.RemoteAddr() == nil && (len(local.IP) == 0 || local.IP.IsUnspecified())
}

// local returns the Local of an address, and of the interface that it belongs to. It
// returns none for an address that no datagram leaves from.
func (p *packetInfo) local(addr netip.Addr, index uint32) Local {
	addr = addr.Unmap()
	if !addr.IsLinkLocalUnicast() || addr.Is4() {
		index = 0
	}
	if addr == p.last && index == p.lastIndex && p.last.IsValid() {
		return p.lastLocal
	}
	if !addr.IsValid() || addr.IsUnspecified() || addr.IsMulticast() || addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return Local{}
	}
	p.last, p.lastIndex = addr, index
	if index != 0 {
		addr = addr.WithZone(p.zones.name(index))
	}
	p.lastLocal = LocalOf(addr)
	return p.lastLocal
}

// open switches the control messages on, if the socket needs them.
func (p *packetInfo) open(fd int, r *refusals) {
	for i, o := range infoOptions() {
		if o.level == unix.IPPROTO_IPV6 && familyOf(fd) == unix.AF_INET {
			continue
		}
		before, err := unix.GetsockoptInt(fd, o.level, o.name)
		if err == nil && before == 0 {
			err = unix.SetsockoptInt(fd, o.level, o.name, 1)
		}
		p.switched[i] = err == nil && before == 0
		p.on = p.on || err == nil
		r.option(o.text, err, infoRefused)
	}
}

// infoRefused is what follows if datagrams have no local addresses.
const infoRefused = "answers leave from the address that the system chooses"

// familyOf returns the address family of a socket; AF_UNSPEC: it is not known. The
// function of package unix would need getsockopt.
func familyOf(fd int) int {
	switch name, _ := syscall.Getsockname(fd); name.(type) {
	case *syscall.SockaddrInet4:
		return unix.AF_INET
	case *syscall.SockaddrInet6:
		return unix.AF_INET6
	}
	return unix.AF_UNSPEC
}

// restore switches off what open has switched on.
func (p *packetInfo) restore(fd int) (err error) {
	for i, o := range infoOptions() {
		if p.switched[i] {
			err = errors.Join(err, os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, o.level, o.name, 0)))
		}
	}
	return err
}

// read returns the local address of a datagram from its control messages b. IPv4 over
// an IPv6 socket may have one of either kind; the one of IPv4 tells more.
func (p *packetInfo) read(b []byte) (l Local) {
	for len(b) >= unix.SizeofCmsghdr {
		h, data, rest, err := unix.ParseOneSocketControlMessage(b)
		if err != nil {
			return l
		}
		switch {
		case h.Level == unix.IPPROTO_IP && h.Type == infoType4 && len(data) >= infoAt4+4:
			return p.local(netip.AddrFrom4([4]byte(data[infoAt4:])), 0)
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_PKTINFO && len(data) >= infoSize6:
			l = p.local(netip.AddrFrom16([16]byte(data)), binary.NativeEndian.Uint32(data[16:]))
		}
		b = rest
	}
	return l
}

// put encodes the control message that makes a datagram leave from l, into space that
// is aligned for it. It returns the length, or 0 if there is nothing to say.
func (p *packetInfo) put(b []byte, l Local) int {
	addr := l.Addr()
	if !p.on || !addr.IsValid() {
		return 0
	}
	if addr.Is4() {
		ip := addr.As4()
		data := putControl(b, unix.IPPROTO_IP, infoSource4, infoSize4)
		copy(data[infoSourceAt4:], ip[:])
		return unix.CmsgSpace(infoSize4)
	}
	ip := addr.As16()
	data := putControl(b, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, infoSize6)
	copy(data, ip[:])
	if zone := addr.Zone(); zone != "" {
		binary.NativeEndian.PutUint32(data[16:], p.zones.index(zone))
	}
	return unix.CmsgSpace(infoSize6)
}

// putControl encodes the header of a control message with n bytes of data, which it
// clears and returns.
func putControl(b []byte, level, typ, n int) []byte {
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = int32(level), int32(typ)
	h.SetLen(unix.CmsgLen(n))
	data := b[unix.CmsgLen(0):unix.CmsgLen(n)]
	clear(data)
	return data
}

// refusesSource reports whether an error may say that the host has not the address that
// a datagram was to leave from.
func refusesSource(errno syscall.Errno) bool {
	switch errno {
	case unix.EINVAL, unix.EADDRNOTAVAIL, unix.ENETUNREACH:
		return true
	}
	return false
}
