//go:build !unix

package udp

import "net"

// meter reads nothing on this system. The zero value is ready to use.
type meter struct{}

// read reports false.
func (*meter) read(*net.UDPConn, *Queue) bool { return false }
