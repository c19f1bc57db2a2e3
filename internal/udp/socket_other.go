//go:build !linux

package udp

import (
	"errors"
	"net"
	"syscall"
)

const canReusePort = false

// reusePort is of no use on systems whose kernel does not distribute packets
// among the sockets of one port. Several have the option nevertheless.
func reusePort(syscall.RawConn) error { return errors.ErrUnsupported }

// forceBuffers does nothing: only Linux has a way to exceed its limits.
func forceBuffers(net.PacketConn, int) (read, write bool) { return false, false }
