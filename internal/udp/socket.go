package udp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// SetBuffers sets the sizes, in bytes, of the socket's receive and send buffers
// in the kernel. On Linux, a process with CAP_NET_ADMIN gets what it asks for;
// others get as much as the system's limits allow. It fails with
// errors.ErrUnsupported if pc is not a socket.
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

// Control is called for a socket before it is bound, as net.ListenConfig.Control.
// nil: there is nothing to do.
type Control = func(network, address string, c syscall.RawConn) error

// Listen opens n sockets on one address, or a single one if the system does not support
// several on one port.
func Listen(network, address string, n int, control Control) (sockets []net.PacketConn, err error) {
	if n > 1 {
		conns, err := ListenReusePort(network, address, n, control)
		for _, c := range conns {
			sockets = append(sockets, c)
		}
		if canReusePort || !errors.Is(err, errors.ErrUnsupported) {
			return sockets, err
		}
	}
	c, err := listenOne(network, address, control)
	if err != nil {
		return nil, err
	}
	return []net.PacketConn{c}, nil
}

// listenOne opens a socket that the system lets send and receive.
func listenOne(network, address string, control Control) (*net.UDPConn, error) {
	config := net.ListenConfig{Control: control}
	pc, err := config.ListenPacket(context.Background(), network, address)
	if err != nil {
		return nil, err
	}
	c := pc.(*net.UDPConn)
	if err := Check(c); err != nil {
		_ = c.Close() // the error to report is the earlier one
		return nil, &net.OpError{Op: "listen", Net: network, Source: c.LocalAddr(), Err: err}
	}
	return c, nil
}

// ListenReusePort opens n sockets on one address and port (SO_REUSEPORT). The
// kernel distributes the peers among them: all packets of one peer arrive at
// one socket. With port 0 it chooses a port that is not in use, and a port in use is an
// error, also one that others share. It fails with errors.ErrUnsupported on systems that
// do not distribute packets so.
func ListenReusePort(network, address string, n int, control Control) ([]*net.UDPConn, error) {
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
	for i := range n {
		c, err := listenReusePort(network, address, i > 0, control)
		if err != nil {
			for _, c := range conns {
				_ = c.Close() // the error to report is the earlier one
			}
			return nil, err
		}
		conns = append(conns, c)
		address = c.LocalAddr().String()
	}
	return conns, nil
}

// listenReusePort opens one socket that shares its port: with earlier ones if joins
// is set. The first socket has the option only once it is bound. Otherwise the kernel
// would take a port that others share, even another program.
func listenReusePort(network, address string, joins bool, control Control) (*net.UDPConn, error) {
	given := control
	if joins {
		control = func(network, address string, c syscall.RawConn) error {
			if err := reusePort(c); err != nil || given == nil {
				return err
			}
			return given(network, address, c)
		}
	}
	c, err := listenOne(network, address, control)
	if err != nil {
		return nil, err
	}
	if !joins {
		raw, err := c.SyscallConn()
		if err == nil {
			err = reusePort(raw)
		}
		if err != nil {
			_ = c.Close() // the error to report is the earlier one
			return nil, err
		}
	}
	return c, nil
}
