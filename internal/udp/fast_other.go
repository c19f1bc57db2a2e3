//go:build !linux

package udp

import "net"

// newFast returns nil: on this system nothing is faster than the portable
// implementation.
func newFast(*net.UDPConn, Features, *refusals) Conn { return nil }
