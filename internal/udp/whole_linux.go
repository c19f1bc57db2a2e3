package udp

import (
	"errors"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// whole keeps the datagrams of a socket from being fragmented: they leave with
// DF, merged or not (IP_PMTUDISC_PROBE). By default the kernel sets DF only if
// a packet fits the path before it is cut, so routers fragment merged ones.
//
// The kernel's memory of the path does not count: whoever can forge ICMP can
// spoil it. Sessions find out by themselves what the path takes. So EMSGSIZE is
// what the interface says, or the last ICMP message to a connected socket.
//
// The zero value is ready to use.
type whole struct {
	mu  sync.RWMutex   // for reading while a datagram is written; for writing while the options change
	was [families]int  // values that begin has found
	has [families]bool // the socket has the option, which begin has set
}

const families = 2

// discover is the option of one address family. An IPv6 socket may carry IPv4
// too, and has both. An IPv4 socket refuses the option of IPv6.
var discover = [families]struct {
	level, option, whole, cut int
	name                      string
}{
	{unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE, unix.IP_PMTUDISC_DONT, "IP_MTU_DISCOVER"},
	{unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE, unix.IPV6_PMTUDISC_DONT, "IPV6_MTU_DISCOVER"},
}

// begin sets the options.
func (w *whole) begin(fd uintptr, r *refusals) {
	for i, o := range discover {
		if o.level == unix.SOL_IPV6 && familyOf(int(fd)) == unix.AF_INET {
			continue
		}
		was, err := unix.GetsockoptInt(int(fd), o.level, o.option)
		if err == nil {
			err = unix.SetsockoptInt(int(fd), o.level, o.option, o.whole)
		}
		w.was[i], w.has[i] = was, err == nil
		r.option(o.name, err, "datagrams may be fragmented on their way")
	}
}

// beginOn is begin for a socket of package net.
func (w *whole) beginOn(c syscall.Conn, r *refusals) {
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { w.begin(fd, r) }) // a closed socket writes nothing
	}
}

// holds reports whether datagrams leave whole.
func (w *whole) holds() bool { return w.has[0] || w.has[1] }

// set sets the options for the datagrams that leave next.
func (w *whole) set(fd uintptr, cut bool) {
	for i, o := range discover {
		value := o.whole
		if cut {
			value = o.cut
		}
		if w.has[i] {
			_ = unix.SetsockoptInt(int(fd), o.level, o.option, value) // begin has set it before
		}
	}
}

// write calls write, which writes one datagram to the socket fd. cut says that
// the datagram may be fragmented.
func (w *whole) write(fd uintptr, cut bool, write func()) {
	if !cut || !w.holds() {
		w.mu.RLock()
		defer w.mu.RUnlock()
		write()
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.set(fd, true)
	write()
	w.set(fd, false)
}

// writeOn is write for a socket of package net.
func (w *whole) writeOn(c syscall.Conn, cut bool, write func() error) error {
	if !cut || !w.holds() {
		w.mu.RLock()
		defer w.mu.RUnlock()
		return write()
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := raw.Control(func(fd uintptr) { w.set(fd, true) }); err != nil {
		return err
	}
	err = write()
	return errors.Join(err, raw.Control(func(fd uintptr) { w.set(fd, false) }))
}

// release restores the options that begin has found.
func (w *whole) release(c syscall.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var errs [families]error
	if err := raw.Control(func(fd uintptr) {
		for i, o := range discover {
			if w.has[i] && w.was[i] != o.whole {
				errs[i] = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), o.level, o.option, w.was[i]))
			}
		}
	}); err != nil {
		return err
	}
	return errors.Join(errs[:]...)
}

// adopt takes over what o knows of the same socket.
func (w *whole) adopt(o *whole) { w.was, w.has = o.was, o.has }
