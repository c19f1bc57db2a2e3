package udp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// SetBuffers sets the sizes of the socket's buffers in the kernel, for reading
// and for writing. A program with the right to administer the network gets what
// it asks for, others as much of it as the system grants to all. It fails with
// errors.ErrUnsupported where pc is not a socket.
func SetBuffers(pc net.PacketConn, bytes int) error {
	s, ok := pc.(interface {
		SetReadBuffer(bytes int) error
		SetWriteBuffer(bytes int) error
	})
	if !ok {
		return fmt.Errorf("udp: buffers of a %T: %w", pc, errors.ErrUnsupported)
	}
	read, write := forceBuffers(pc, bytes)
	var errs [2]error
	if !read {
		errs[0] = s.SetReadBuffer(bytes)
	}
	if !write {
		errs[1] = s.SetWriteBuffer(bytes)
	}
	return errors.Join(errs[:]...)
}

// ListenReusePort opens n sockets on one address and port, among which the
// kernel shares out the peers: all packets of one peer come to one socket. With
// port 0 it chooses a port that nobody has. On systems that do not share so, it
// fails with errors.ErrUnsupported.
func ListenReusePort(network, address string, n int) ([]*net.UDPConn, error) {
	switch network {
	case "udp", "udp4", "udp6":
	default:
		return nil, net.UnknownNetworkError(network)
	}
	if !canReusePort {
		return nil, fmt.Errorf("udp: sockets that share a port: %w", errors.ErrUnsupported)
	}
	if n < 1 {
		return nil, fmt.Errorf("udp: %d sockets that share a port", n)
	}
	conns := make([]*net.UDPConn, 0, n)
	for range n {
		c, err := listenReusePort(network, address)
		if err != nil {
			for _, c := range conns {
				_ = c.Close() // the error to report is the one before
			}
			return nil, err
		}
		conns = append(conns, c)
		address = c.LocalAddr().String()
	}
	return conns, nil
}

// listenReusePort opens one socket that shares its port. One that has the port
// chosen is made to share it when it has it: the kernel may choose a port that
// is shared already, even by others, for a socket that would share it.
func listenReusePort(network, address string) (*net.UDPConn, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	chosen := port == "" || port == "0"
	var config net.ListenConfig
	if !chosen {
		config.Control = func(_, _ string, c syscall.RawConn) error { return reusePort(c) }
	}
	pc, err := config.ListenPacket(context.Background(), network, address)
	if err != nil {
		return nil, err
	}
	c := pc.(*net.UDPConn)
	if chosen {
		raw, err := c.SyscallConn()
		if err == nil {
			err = reusePort(raw)
		}
		if err != nil {
			_ = c.Close() // the error to report is the one before
			return nil, err
		}
	}
	return c, nil
}
