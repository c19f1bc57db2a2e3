package takeover

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pipeBuffer is how much a Pipe holds, as far as the system allows. What a successor
// forwards beyond it is dropped.
const pipeBuffer = 4 << 20

// Pipe is one end of a pair of sockets that keep the limits of messages.
type Pipe struct{ conn *net.UnixConn }

// NewPipe returns this process's end of a new pair, and the descriptor of the other one,
// for OpenPipe or OpenFeed.
func NewPipe() (*Pipe, int, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, -1, os.NewSyscallError("socketpair", err)
	}
	for _, fd := range fds {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, pipeBuffer) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, pipeBuffer) // what is granted is enough to work
		}
	}
	p, err := OpenPipe(fds[0])
	if err != nil {
		_ = unix.Close(fds[1])
		return nil, -1, err
	}
	return p, fds[1], nil
}

// OpenPipe returns the Pipe of a descriptor, which it closes. Only a socket of NewPipe is
// taken.
func OpenPipe(fd int) (*Pipe, error) {
	f, err := openFile(fd)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, errors.New("a descriptor is not a pipe")
	}
	return &Pipe{u}, nil
}

// openFile returns a descriptor of NewPipe as a file, or closes it.
func openFile(fd int) (*os.File, error) {
	f := os.NewFile(uintptr(fd), "pipe")
	if f == nil {
		return nil, os.NewSyscallError("pipe", unix.EBADF)
	}
	if typ, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || typ != unix.SOCK_SEQPACKET {
		_ = f.Close()
		return nil, errors.New("a descriptor is not a pipe")
	}
	return f, nil
}

// Duplicate returns another descriptor of the same socket, to pass on.
func (p *Pipe) Duplicate() (fd int, err error) { return Duplicate(p.conn) }

// Read waits for a message. The error is io.EOF if the other end is closed.
func (p *Pipe) Read(b []byte) (n int, err error) {
	n, _, flags, _, err := p.conn.ReadMsgUnix(b, nil)
	if errors.Is(err, unix.ECONNRESET) { // comes once, before what is left
		n, _, flags, _, err = p.conn.ReadMsgUnix(b, nil)
	}
	switch {
	case errors.Is(err, io.EOF):
		return 0, io.EOF
	case err != nil:
		return 0, err
	case flags&unix.MSG_TRUNC != 0:
		return 0, errMalformed
	}
	return n, nil
}

// TryWrite writes a message unless that would wait. It reports whether it did.
func (p *Pipe) TryWrite(b []byte) (ok bool) {
	raw, err := p.conn.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Write(func(fd uintptr) bool {
		ok = trySend(fd, b)
		return true
	})
	return ok && err == nil
}

// trySend writes a message unless that would wait. It reports whether it did.
func trySend(fd uintptr, b []byte) bool {
	return unix.Send(int(fd), b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) == nil
}

// SetReadDeadline sets the time after which Read fails with os.ErrDeadlineExceeded.
func (p *Pipe) SetReadDeadline(t time.Time) error { return p.conn.SetReadDeadline(t) }

// Interrupt makes Read fail with os.ErrDeadlineExceeded until Resume.
func (p *Pipe) Interrupt() { _ = p.SetReadDeadline(time.Unix(1, 0)) }

// Resume ends the effect of Interrupt.
func (p *Pipe) Resume() { _ = p.SetReadDeadline(time.Time{}) }

// Close closes this process's end.
func (p *Pipe) Close() { _ = p.conn.Close() }

// Feed is the end of a Pipe that only writes. It is not in the netpoller, which would
// wake this process each time that the other one has read.
type Feed struct {
	f   *os.File
	raw syscall.RawConn // of f
}

// OpenFeed returns the Feed of a descriptor, which it closes. Only a socket of NewPipe is
// taken.
func OpenFeed(fd int) (*Feed, error) {
	err := unix.SetNonblock(fd, false) // else package os would put it into the netpoller
	if err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	f, err := openFile(fd)
	if err != nil {
		return nil, err
	}
	raw, err := f.SyscallConn()
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &Feed{f, raw}, nil
}

// Duplicate returns another descriptor of the same socket, to pass on.
func (f *Feed) Duplicate() (fd int, err error) { return Duplicate(f.f) }

// TryWrite writes a message unless that would wait. It reports whether it did.
func (f *Feed) TryWrite(b []byte) (ok bool) {
	err := f.raw.Control(func(fd uintptr) { ok = trySend(fd, b) })
	return ok && err == nil
}

// Close closes this process's descriptor.
func (f *Feed) Close() { _ = f.f.Close() }
