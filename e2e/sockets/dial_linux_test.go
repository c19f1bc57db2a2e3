package sockets

import (
	"net"
	"syscall"
	"testing"

	"github.com/arqnet/kcp"
	"github.com/stretchr/testify/require"
)

// The system may choose the port that is dialled for the dialling socket itself. Then
// nobody listens there.
func TestDialFromTheSamePort(t *testing.T) {
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, pc.Close())
	config := &kcp.Config{Control: func(_, _ string, c syscall.RawConn) error {
		var bound error
		err := c.Control(func(fd uintptr) {
			port := pc.LocalAddr().(*net.UDPAddr).Port
			bound = syscall.Bind(int(fd), &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
		})
		if err == nil {
			err = bound
		}
		return err
	}}
	_, err = kcp.Dial("udp4", pc.LocalAddr().String(), config)
	require.ErrorIs(t, err, kcp.ErrRefused)
}
