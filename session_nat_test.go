package kcp

import (
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// nat forwards packets of one client on loopback to a server, and can change
// the address that the server sees.
type nat struct {
	t      *testing.T
	in     *net.UDPConn
	server string

	mu     sync.Mutex
	out    *net.UDPConn
	client net.Addr
}

func newNAT(t *testing.T, server string) *nat {
	in, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	n := &nat{t: t, in: in, server: server}
	n.rebind()
	go n.forward()
	t.Cleanup(func() {
		require.NoError(t, in.Close())
		n.mu.Lock()
		defer n.mu.Unlock()
		require.NoError(t, n.out.Close())
	})
	return n
}

func (n *nat) inside() string { return n.in.LocalAddr().String() }

func (n *nat) outside() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.out.LocalAddr().String()
}

// rebind opens a new socket towards the server in place of the old one.
func (n *nat) rebind() {
	out, err := net.Dial("udp", n.server)
	require.NoError(n.t, err)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.out != nil {
		require.NoError(n.t, n.out.Close())
	}
	n.out = out.(*net.UDPConn)
	go n.back(n.out)
}

// forward takes packets from the client to the server until the end.
func (n *nat) forward() {
	buf := make([]byte, 1<<16)
	for {
		size, from, err := n.in.ReadFrom(buf)
		if err != nil {
			return
		}
		n.mu.Lock()
		n.client = from
		_, _ = n.out.Write(buf[:size]) // loss is allowed
		n.mu.Unlock()
	}
}

// back takes packets that come to out to the client.
func (n *nat) back(out *net.UDPConn) {
	buf := make([]byte, 1<<16)
	for {
		size, err := out.Read(buf)
		if err != nil {
			return
		}
		n.mu.Lock()
		client := n.client
		n.mu.Unlock()
		_, _ = n.in.WriteTo(buf[:size], client)
	}
}
