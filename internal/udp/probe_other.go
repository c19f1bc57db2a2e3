//go:build !linux

package udp

import "net"

const canProbe = false

// probing writes ordinary datagrams: what other systems offer for probes
// differs.
type probing struct{}

func (*probing) write(c *net.UDPConn, connected bool, d *Datagram) error {
	_, err := writeTo(c, connected, d.Buf, d.Addr)
	return err
}
