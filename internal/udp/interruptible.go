package udp

import "net"

// Interruptible is embedded in sockets other than *net.UDPConn whose blocked
// reads end at a read deadline. Only sockets of this module can embed it.
type Interruptible struct{}

func (Interruptible) interruptible() {}

// IsInterruptible reports whether a read deadline ends blocked reads of pc. Not
// every net.PacketConn does what its interface says.
func IsInterruptible(pc net.PacketConn) bool {
	switch pc.(type) {
	case *net.UDPConn, interface{ interruptible() }:
		return true
	}
	return false
}
