//go:build !linux

package udp

import "net"

const canProbe = false

// probing does nothing here: other systems differ in what they offer.
type probing struct{}

func (*probing) write(c *net.UDPConn, connected bool, d *Datagram) error {
	_, err := writeTo(c, connected, d.Buf, d.Addr)
	return err
}
