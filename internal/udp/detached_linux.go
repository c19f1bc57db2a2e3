package udp

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Detached is a socket that this process only writes to, while another reads it. It is
// not in the netpoller. A socket that is in the netpollers of several processes wakes
// all of them for each packet.
type Detached struct {
	local, remote net.Addr

	mu sync.RWMutex // guards fd; held while it is used
	fd int          // -1: closed
}

// Detach returns the socket of c as a Detached, and the Conn that writes to it. c can be
// closed then. pc is nil if c does not support that.
func Detach(c Conn) (pc net.PacketConn, writer Conn) {
	f, ok := c.(*fastConn)
	if !ok {
		return nil, nil
	}
	d := &Detached{local: f.pc.LocalAddr(), remote: f.pc.RemoteAddr(), fd: -1}
	if f.raw.Control(func(fd uintptr) {
		if n, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
			d.fd = n
		}
	}) != nil || d.fd < 0 {
		return nil, nil
	}
	w := makeFast(d, d, new(refusals))
	w.family, w.gro, w.groBefore = f.family, f.gro, f.groBefore
	w.info.on = f.info.on
	w.whole.adopt(&f.whole)
	w.merging.adopt(&f.merging)
	return d, w
}

// SyscallConn returns d.
func (d *Detached) SyscallConn() (syscall.RawConn, error) { return d, nil }

// Control calls f with the descriptor.
func (d *Detached) Control(f func(fd uintptr)) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.fd < 0 {
		return net.ErrClosed
	}
	f(uintptr(d.fd))
	return nil
}

// writeWait bounds a wait for space in the send buffer, after which Write looks whether
// the socket is closed.
const writeWait = 100 * time.Millisecond

// Write calls f until it returns true, each time when the socket is writable.
func (d *Detached) Write(f func(fd uintptr) bool) error {
	for done := false; !done; {
		if err := d.Control(func(fd uintptr) {
			if done = f(fd); done {
				return
			}
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(writeWait/time.Millisecond))
			if err != nil && err != unix.EINTR {
				time.Sleep(time.Millisecond) // a sandbox refuses it
			}
		}); err != nil {
			return err
		}
	}
	return nil
}

// Close closes this process's descriptor.
func (d *Detached) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fd < 0 {
		return net.ErrClosed
	}
	err := unix.Close(d.fd)
	d.fd = -1
	return os.NewSyscallError("close", err)
}

func (d *Detached) LocalAddr() net.Addr  { return d.local }
func (d *Detached) RemoteAddr() net.Addr { return d.remote }

// What follows is for readers, or for those that do not write through a Conn.

func (d *Detached) Read(func(fd uintptr) bool) error       { return errors.ErrUnsupported }
func (d *Detached) ReadFrom([]byte) (int, net.Addr, error) { return 0, nil, errors.ErrUnsupported }
func (d *Detached) WriteTo([]byte, net.Addr) (int, error)  { return 0, errors.ErrUnsupported }
func (d *Detached) SetDeadline(time.Time) error            { return nil }
func (d *Detached) SetReadDeadline(time.Time) error        { return nil }
func (d *Detached) SetWriteDeadline(time.Time) error       { return nil }
