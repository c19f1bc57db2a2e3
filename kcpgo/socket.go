package kcp

import (
	"net"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// socketBuffer is what the buffers of a socket that this package opens are asked
// to be, in bytes. With the system's sizes a burst of one window may not fit.
const socketBuffer = 4 << 20

// openSocket opens a UDP socket.
func openSocket(network string, addr *net.UDPAddr) (*net.UDPConn, error) {
	pc, err := net.ListenUDP(network, addr)
	if err != nil {
		return nil, err
	}
	// The system may grant less, which is enough to work.
	_ = pc.SetReadBuffer(socketBuffer)
	_ = pc.SetWriteBuffer(socketBuffer)
	return pc, nil
}

// setReadBuffer sets the receive buffer of a socket, if it has one.
func setReadBuffer(pc net.PacketConn, bytes int) error {
	if b, ok := pc.(interface{ SetReadBuffer(int) error }); ok {
		return b.SetReadBuffer(bytes)
	}
	return errInvalidOperation
}

// setWriteBuffer sets the send buffer of a socket, if it has one.
func setWriteBuffer(pc net.PacketConn, bytes int) error {
	if b, ok := pc.(interface{ SetWriteBuffer(int) error }); ok {
		return b.SetWriteBuffer(bytes)
	}
	return errInvalidOperation
}

// setDSCP marks the packets of a socket: the DSCP field of IPv4 (RFC 2474), and
// all of the traffic class of IPv6, as in kcp-go. A socket with a method SetDSCP
// does it itself.
func setDSCP(pc net.PacketConn, dscp int) error {
	if d, ok := pc.(interface{ SetDSCP(int) error }); ok {
		return d.SetDSCP(dscp)
	}
	c, ok := pc.(net.Conn)
	if !ok {
		return errInvalidOperation
	}
	v4 := ipv4.NewConn(c).SetTOS(dscp << 2)
	v6 := ipv6.NewConn(c).SetTrafficClass(dscp)
	if v4 != nil && v6 != nil {
		return errInvalidOperation
	}
	return nil
}
