//go:build !linux

package udp

import (
	"errors"
	"net"
)

// Check returns an error if the system refuses what no socket can do without.
func Check(c *net.UDPConn) error {
	if c.LocalAddr() == nil {
		return errors.New("the system does not tell the address of the socket")
	}
	return nil
}
