//go:build !linux

package udp

import (
	"errors"
	"net"
	"syscall"
)

const canReusePort = false

// reusePort is of no use on systems whose kernel does not share out packets
// among the sockets of one port; several of them know the option all the same.
func reusePort(syscall.RawConn) error { return errors.ErrUnsupported }

// forceBuffers does nothing: only Linux has a way past its limits.
func forceBuffers(net.PacketConn, int) (read, write bool) { return false, false }
