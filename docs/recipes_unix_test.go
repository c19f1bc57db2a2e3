//go:build unix

package docs

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/arqnet/kcp"
)

func expedite(config *kcp.Config) {
	config.Control = func(network, address string, socket syscall.RawConn) error {
		var failed error
		err := socket.Control(func(fd uintptr) {
			failed = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_TOS, 46<<2)
		})
		return errors.Join(err, failed)
	}
}

// TestExpedite asks the system which option a socket has.
func TestExpedite(t *testing.T) {
	var config kcp.Config
	expedite(&config)
	pc, err := (&net.ListenConfig{Control: config.Control}).ListenPacket(t.Context(), "udp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer pc.Close()
	raw, err := pc.(*net.UDPConn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		tos, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_TOS)
		require.NoError(t, err)
		require.Equal(t, 46<<2, tos)
	}))
	l, err := kcp.Listen("udp4", "127.0.0.1:0", &config)
	require.NoError(t, err)
	require.NoError(t, l.Close())
}
