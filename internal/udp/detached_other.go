//go:build !linux

package udp

import (
	"errors"
	"net"
)

// Detached exists on Linux only, as do handovers of sockets.
type Detached struct{ net.PacketConn }

// Detach returns nil.
func Detach(Conn) (net.PacketConn, Conn) { return nil, nil }

// Attach returns errors.ErrUnsupported.
func (*Detached) Attach() (*net.UDPConn, error) { return nil, errors.ErrUnsupported }
