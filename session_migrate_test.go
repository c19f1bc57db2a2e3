package kcp

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// A session whose new address is taken by another session of the same
// conversation id stays where it is.
func TestMoveDoesNotCollide(t *testing.T) {
	inWorld(t, 28, clean, func(w *world) {
		e, _ := w.endpoint(serverAddr, &Config{Cipher: testAEAD(t), DialTimeout: -1})
		at := func(port int) net.Addr { return &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2).To4(), Port: port} }
		x, err := e.Dial(context.Background(), at(1))
		require.NoError(t, err)
		key := x.entry.Key()
		key.Addr = netip.AddrPortFrom(key.Addr.Addr(), 2)
		_, err = e.openSession(key, at(2), false)
		require.NoError(t, err)
		require.False(t, e.rekey(x, key))
		require.Equal(t, x, e.table.Get(x.entry.Key()))
	})
}

// The conversation id may be asked for while the session moves.
func TestConvWhileMoving(t *testing.T) {
	inWorld(t, 28, clean, func(w *world) {
		e, _ := w.endpoint(serverAddr, &Config{Cipher: testAEAD(t), DialTimeout: -1})
		c, err := e.Dial(context.Background(), &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2).To4(), Port: 1})
		require.NoError(t, err)
		conv := c.Conv()
		done := make(chan uint32)
		go func() { done <- c.Conv() }()
		key := c.entry.Key()
		key.Addr = netip.AddrPortFrom(key.Addr.Addr(), 2)
		require.True(t, e.rekey(c, key))
		require.Equal(t, conv, <-done)
		require.Equal(t, c, e.table.Get(key))
	})
}
