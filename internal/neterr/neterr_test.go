package neterr

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// socketError returns an error as package net has it.
func socketError(n syscall.Errno) error {
	return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connectex", n)}
}

// What a socket of Windows returns is recognised by the name that the error has
// elsewhere, and by no other name.
func TestWindowsNumbers(t *testing.T) {
	for _, tc := range []struct {
		number, is syscall.Errno
	}{
		{10061, syscall.ECONNREFUSED},
		{1225, syscall.ECONNREFUSED},
		{10048, syscall.EADDRINUSE},
		{10054, syscall.ECONNRESET},
		{10040, syscall.EMSGSIZE},
		{10055, syscall.ENOBUFS},
		{10060, syscall.ETIMEDOUT},
		{121, syscall.ETIMEDOUT},
		{10051, syscall.ENETUNREACH},
		{10065, syscall.EHOSTUNREACH},
		{10022, syscall.EINVAL},
		{10024, syscall.EMFILE},
		{10049, syscall.EADDRNOTAVAIL},
		{10013, syscall.EACCES},
		{10004, syscall.EINTR},
	} {
		err := socketError(tc.number)
		for _, n := range windowsNumbers() {
			require.Equal(t, n.means == tc.is, isOn("windows", err, n.means), "%d as %d", tc.number, n.means)
		}
		require.True(t, isOn("windows", errors.Join(socketError(1), fmt.Errorf("and %w", err)), tc.is), "%d of two", tc.number)
		require.False(t, isOn("windows", nil, tc.is))
		require.False(t, isOn("linux", err, tc.is), "%d elsewhere", tc.number)
		ours := &Error{"text", tc.is}
		require.True(t, ours.isOn("windows", tc.number), "%d", tc.number)
		require.False(t, ours.isOn("linux", tc.number), "%d", tc.number)
		require.False(t, ours.isOn("windows", errors.New("other")))
	}
}

// The names of package syscall count on every system.
func TestNames(t *testing.T) {
	for _, n := range windowsNumbers() {
		require.True(t, Is(socketError(n.means), n.means), "%d", n.means)
		require.Equal(t, runtime.GOOS == "windows", Is(socketError(n.number), n.means), "%d", n.number)
		ours := error(&Error{"text", n.means})
		require.ErrorIs(t, ours, n.means)
		require.Equal(t, runtime.GOOS == "windows", errors.Is(ours, n.number), "%d", n.number)
		require.EqualError(t, ours, "text")
	}
	require.False(t, Is(socketError(syscall.ECONNREFUSED), syscall.ECONNRESET))
}

// On Windows a UDP socket that is told of a closed port returns WSAECONNRESET.
func TestPortUnreachable(t *testing.T) {
	for goos, unreachable := range map[string][]syscall.Errno{
		"linux":   {syscall.ECONNREFUSED},
		"windows": {syscall.ECONNREFUSED, syscall.ECONNRESET, 10061, 10054, 1234, 1225},
	} {
		for _, n := range []syscall.Errno{syscall.ECONNREFUSED, syscall.ECONNRESET, 10061, 10054, 1234, 1225, 10060, syscall.EMSGSIZE} {
			is := false
			for _, u := range unreachable {
				is = is || u == n
			}
			require.Equal(t, is, portUnreachableOn(goos, socketError(n)), "%s, %d", goos, n)
		}
	}
}

// A closed port is recognised on the system that the test runs on.
func TestClosedPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, err = net.Listen("tcp", l.Addr().String())
	require.True(t, Is(err, syscall.EADDRINUSE), "%v", err)
	require.NoError(t, l.Close())
	_, err = net.Dial("tcp", l.Addr().String())
	require.True(t, Is(err, syscall.ECONNREFUSED), "%v", err)
	require.False(t, Is(err, syscall.EADDRINUSE), "%v", err)
}

// A want of descriptors is recognised, in the text of a look-up too.
func TestOutOfDescriptors(t *testing.T) {
	require.True(t, OutOfDescriptors(socketError(syscall.EMFILE)))
	require.True(t, OutOfDescriptors(socketError(syscall.ENFILE)))
	require.False(t, OutOfDescriptors(socketError(syscall.ENOBUFS)))
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE} {
		require.True(t, OutOfDescriptors(&net.DNSError{Err: "dial: " + errno.Error()}))
	}
	require.False(t, OutOfDescriptors(&net.DNSError{Err: "no such host"}))
	require.False(t, OutOfDescriptors(nil))
}
