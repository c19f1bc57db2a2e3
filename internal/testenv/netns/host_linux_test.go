package netns

import (
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// A host has a network of its own, in which programs run, and the process has another.
func TestHost(t *testing.T) {
	h := New(t)
	of := func(h *Host) (link string, interfaces int) {
		require.NoError(t, h.Do(func() (err error) {
			if link, err = os.Readlink("/proc/thread-self/ns/net"); err != nil {
				return err
			}
			all, err := net.Interfaces()
			interfaces = len(all)
			return err
		}))
		named, err := os.Readlink(h.Path)
		require.NoError(t, err)
		require.Equal(t, link, named)
		return link, interfaces
	}
	before, n := of(h)
	h.Try(t, `
		ip link add d0 type veth peer name d1

		ip link set d0 up`)
	after, more := of(h)
	require.Equal(t, before, after)
	require.Equal(t, n+2, more)
	process, _ := of(Process())
	require.NotEqual(t, before, process)
	require.ErrorContains(t, h.Run("ip link del d0\nip link del d0"), "ip link del d0: exit status")
}
