package udp

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const canReconnect = true

// state returns the state of the socket. A socket that the system has disconnected, as
// for ss -K, has no peer.
func (k *Connected) state() (s SocketState, err error) {
	s.Source = k.source()
	err = k.raw.Control(func(fd uintptr) {
		_, failed := syscall.Getpeername(int(fd))
		s.Connected = failed != unix.ENOTCONN // a sandbox may refuse to tell
		s.Device = device(int(fd))
	})
	return s, err
}

// device returns the name of the interface that a socket is bound to. If the interface is
// gone, it returns a text that names none.
func device(fd int) string {
	name, err := unix.GetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE)
	if err != nil {
		return "?"
	}
	return name
}

// route asks with a socket that is opened and connected as this one was.
func (k *Connected) route() (r Route) {
	domain := unix.AF_INET
	if k.peer.Addr().Is6() {
		domain = unix.AF_INET6
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return Route{Unknown: true} // no descriptor, or not permitted
	}
	asked := &descriptor{fd: fd}
	defer asked.close()
	if !k.sameNetwork(fd) {
		return Route{Unknown: true}
	}
	if k.control != nil {
		if err := k.control(k.network, k.peer.String(), asked); err != nil {
			// A control that binds the socket has given its port away.
			return Route{Err: err, Unknown: errors.Is(err, unix.EADDRINUSE)}
		}
	}
	if k.chosen.IsValid() {
		if err := unix.Bind(fd, systemAddr(fd, netip.AddrPortFrom(k.chosen, 0))); err != nil {
			return Route{Err: os.NewSyscallError("bind", err)}
		}
	}
	if err := unix.Connect(fd, systemAddr(fd, k.peer)); err != nil {
		return Route{Err: os.NewSyscallError("connect", err)}
	}
	r.Source, r.Device = localOf(fd).Addr(), device(fd)
	r.Unknown = !r.Source.IsValid()
	return r
}

// sameNetwork reports whether a new socket is in the network namespace of this one.
// Threads of one process may be in several. Kernels before 5.14 do not tell.
func (k *Connected) sameNetwork(fd int) bool {
	other, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return true
	}
	ours := other
	_ = k.raw.Control(func(fd uintptr) {
		ours, _ = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	})
	return ours == other
}

// Reconnect connects the socket again, bound to an interface; "": to none. It keeps the
// port if it can, and reports whether the address is another one now.
func (k *Connected) Reconnect(to string) (moved bool, err error) {
	port := uint16(k.local.Load().Port)
	if e := k.raw.Control(func(fd uintptr) {
		var at netip.AddrPort
		if at, err = k.reconnect(int(fd), port, to); err == nil {
			moved = k.moveTo(at)
		}
	}); e != nil {
		return false, e
	}
	return moved, err
}

func (k *Connected) reconnect(fd int, port uint16, to string) (netip.AddrPort, error) {
	if err := disconnect(fd); err != nil {
		return netip.AddrPort{}, os.NewSyscallError("connect", err)
	}
	// To disconnect has undone the binding, also of a socket to a link-local address,
	// which is bound by its zone.
	if to != "" && to != "?" && k.peer.Addr().Zone() == "" {
		if err := unix.BindToDevice(fd, to); err != nil {
			return netip.AddrPort{}, os.NewSyscallError("setsockopt", err)
		}
	}
	if localOf(fd).Port() == 0 {
		// A port that the system has chosen is given up by disconnecting, unless it
		// was bound. If another socket has it by now, the system chooses again.
		from := k.chosen
		if !from.IsValid() {
			from = netip.IPv4Unspecified()
			if k.peer.Addr().Is6() {
				from = netip.IPv6Unspecified()
			}
		}
		err := unix.Bind(fd, systemAddr(fd, netip.AddrPortFrom(from, port)))
		if errors.Is(err, unix.EADDRINUSE) && k.chosen.IsValid() {
			err = unix.Bind(fd, systemAddr(fd, netip.AddrPortFrom(from, 0)))
		}
		if err != nil && k.chosen.IsValid() {
			return netip.AddrPort{}, os.NewSyscallError("bind", err)
		}
	}
	if err := unix.Connect(fd, systemAddr(fd, k.peer)); err != nil {
		return netip.AddrPort{}, os.NewSyscallError("connect", err)
	}
	return localOf(fd), nil
}

// disconnect dissolves the connection of a socket.
func disconnect(fd int) error {
	none := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&none)), unix.SizeofSockaddrInet4)
	if errno != 0 {
		return errno
	}
	return nil
}

// localOf returns the address of a socket, without its zone.
func localOf(fd int) netip.AddrPort {
	name, _ := syscall.Getsockname(fd) // the function of package unix needs getsockopt
	switch a := name.(type) {
	case *syscall.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *syscall.SockaddrInet6:
		return Unmap(netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port)))
	}
	return netip.AddrPort{}
}

// systemAddr returns an address as the system takes it. The interface of a zone is looked
// up in the network of the socket, and each time, as its number may have changed.
func systemAddr(fd int, a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	to := &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	if zone := a.Addr().Zone(); zone != "" {
		if request, err := unix.NewIfreq(zone); err == nil && unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, request) == nil {
			to.ZoneId = request.Uint32()
		} else if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
			to.ZoneId = uint32(n)
		}
	}
	return to
}

// descriptor is a socket as a syscall.RawConn. Once it is closed its number is of use to
// nobody who has kept it.
type descriptor struct {
	mu     sync.Mutex
	fd     int
	closed bool
}

func (d *descriptor) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	unix.Close(d.fd)
}

func (d *descriptor) Control(f func(fd uintptr)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return net.ErrClosed
	}
	f(uintptr(d.fd))
	return nil
}

func (d *descriptor) Read(func(fd uintptr) bool) error  { return errors.ErrUnsupported }
func (d *descriptor) Write(func(fd uintptr) bool) error { return errors.ErrUnsupported }
