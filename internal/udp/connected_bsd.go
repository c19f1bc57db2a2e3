//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package udp

import (
	"net"
	"net/netip"
	"os"
	"syscall"
)

const canReconnect = true

// state returns the state of the socket.
func (k *Connected) state() (s SocketState, err error) {
	s.Source = k.source()
	err = k.raw.Control(func(fd uintptr) {
		_, failed := syscall.Getpeername(int(fd))
		s.Connected = failed == nil
	})
	return s, err
}

// route asks with a socket that is opened and connected as this one was.
func (k *Connected) route() (r Route) {
	d := net.Dialer{Control: k.control}
	if k.chosen.IsValid() {
		d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(k.chosen, 0))
	}
	c, err := d.Dial(k.network, k.peer.String())
	if err != nil {
		return Route{Err: err}
	}
	defer c.Close()
	r.Source = Unmap(c.LocalAddr().(*net.UDPAddr).AddrPort()).Addr().WithZone("")
	return r
}

// Reconnect connects the socket again, and reports whether its address is another one
// now. These systems dissolve the old connection in doing so, and keep the port. An
// address that the caller has chosen is not given up.
func (k *Connected) Reconnect(string) (moved bool, err error) {
	if k.chosen.IsValid() {
		return false, nil
	}
	if e := k.raw.Control(func(fd uintptr) {
		if err = syscall.Connect(int(fd), k.systemAddr()); err != nil {
			err = os.NewSyscallError("connect", err)
			return
		}
		var at netip.AddrPort
		switch name, _ := syscall.Getsockname(int(fd)); a := name.(type) {
		case *syscall.SockaddrInet4:
			at = netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
		case *syscall.SockaddrInet6:
			at = Unmap(netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port)))
		default:
			return
		}
		moved = k.moveTo(at)
	}); e != nil {
		return false, e
	}
	return moved, err
}

// systemAddr returns the peer's address as the system takes it.
func (k *Connected) systemAddr() syscall.Sockaddr {
	a := k.peer
	if a.Addr().Is4() {
		return &syscall.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	to := &syscall.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	if i, err := net.InterfaceByName(a.Addr().Zone()); err == nil {
		to.ZoneId = uint32(i.Index)
	}
	return to
}
