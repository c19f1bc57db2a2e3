package udp

import (
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

const canReusePort = true

// reusePort lets a socket share its address and port with others of the same
// user.
func reusePort(c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	}); e != nil {
		return e
	}
	return os.NewSyscallError("setsockopt SO_REUSEPORT", err)
}

// forceBuffers sets the sizes of the socket's buffers beyond the system's
// limits, and reports for which of the two that was permitted.
func forceBuffers(pc net.PacketConn, bytes int) (read, write bool) {
	s, ok := pc.(syscall.Conn)
	if !ok {
		return false, false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false, false
	}
	// If this fails, so does the ordinary way, which reports the error.
	_ = raw.Control(func(fd uintptr) {
		read = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bytes) == nil
		write = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, bytes) == nil
	})
	return read, write
}
