//go:build !unix

package udp

import "syscall"

// meter reads nothing on this system. The zero value is ready to use.
type meter struct{}

// read reports false.
func (*meter) read(syscall.Conn, *Queue) bool { return false }
