//go:build unix && !linux

package udp

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// meter reads the size of a socket's receive buffer (SO_RCVBUF). The zero value
// is ready to use.
type meter struct{}

// read sets q, and reports whether it has.
func (*meter) read(c syscall.Conn, q *Queue) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	size := 0
	if raw.Control(func(fd uintptr) {
		size, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF)
	}) != nil || err != nil || size <= 0 {
		return false
	}
	*q = Queue{Used: -1, Limit: size}
	return true
}
