//go:build !linux

package udp

import "net"

// Detached exists on Linux only, as do handovers of sockets.
type Detached struct{ net.UDPConn }

// Detach returns nil.
func Detach(Conn) (net.PacketConn, Conn) { return nil, nil }
