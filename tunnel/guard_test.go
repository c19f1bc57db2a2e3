package tunnel

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/fair"
	"github.com/stretchr/testify/require"
)

// ip returns an address as sessions have it.
func ip(s string) net.Addr { return &net.UDPAddr{IP: net.ParseIP(s), Port: 1} }

func TestGuard(t *testing.T) {
	now := time.Unix(1000, 0)
	g := &guard{now: func() time.Time { return now }}
	for range guardAttempts {
		require.True(t, g.begin(ip("192.0.2.1"), "me"))
	}
	require.False(t, g.begin(ip("192.0.2.1"), "me"))
	require.True(t, g.begin(ip("192.0.2.1"), "you"), "another user behind the same NAT")
	require.True(t, g.begin(ip("192.0.2.2"), "me"))
	for range guardAttempts {
		require.True(t, g.begin(ip("2001:db8::1"), "me"))
	}
	require.False(t, g.begin(ip("2001:db8::2"), "me"), "of the same network")
	require.True(t, g.begin(ip("2001:db8:0:1::2"), "me"))

	now = now.Add(guardWindow - 1)
	require.False(t, g.begin(ip("192.0.2.1"), "me"))
	now = now.Add(1)
	require.True(t, g.begin(ip("192.0.2.1"), "me"))
	for range 3 * guardNetwork {
		require.True(t, g.begin(ip("192.0.2.9"), "me"))
		g.succeed(ip("192.0.2.9"), "me")
	}
	require.Zero(t, g.failed.of(source{network: fair.BlockOfAddr(ip("192.0.2.9")).Subnet}))
}

// Guesses of many names from one network are limited together. Whoever was right there
// before is looked at all the same.
func TestGuardOfANetwork(t *testing.T) {
	now := time.Unix(1000, 0)
	g := &guard{now: func() time.Time { return now }}
	require.True(t, g.begin(ip("192.0.2.1"), "me"))
	g.succeed(ip("192.0.2.1"), "me")
	for i := range guardNetwork {
		require.True(t, g.begin(ip("192.0.2.1"), fmt.Sprint(i)))
	}
	require.False(t, g.begin(ip("192.0.2.1"), "other"))
	require.True(t, g.begin(ip("192.0.2.2"), "other"))
	for range 3 * guardAttempts {
		require.True(t, g.begin(ip("192.0.2.1"), "me"))
		g.succeed(ip("192.0.2.1"), "me")
	}
	for range guardAttempts {
		require.True(t, g.begin(ip("192.0.2.1"), "me"))
	}
	require.False(t, g.begin(ip("192.0.2.1"), "me"), "its own attempts count")

	for range 2 {
		now = now.Add(guardMemory - guardWindow)
		for i := range guardNetwork {
			require.True(t, g.begin(ip("192.0.2.1"), fmt.Sprint(i)))
		}
		if now.Before(time.Unix(1000, 0).Add(guardMemory)) {
			require.True(t, g.begin(ip("192.0.2.1"), "me"))
		}
	}
	require.False(t, g.begin(ip("192.0.2.1"), "me"), "that was long ago")
}

// What is remembered is bounded, and the oldest is forgotten first.
func TestGuardForgets(t *testing.T) {
	now := time.Unix(1000, 0)
	g := &guard{now: func() time.Time { return now }, entries: 8}
	for i := range 100 {
		from := ip(fmt.Sprintf("10.0.0.%d", i))
		for range 1 + i%2*guardAttempts {
			g.begin(from, strings.Repeat("x", i))
			require.LessOrEqual(t, len(g.failed.all), 8)
		}
		g.succeed(from, strings.Repeat("x", i))
		require.LessOrEqual(t, len(g.known.all), 8)
		now = now.Add(time.Second)
	}
	require.Positive(t, g.failed.of(source{network: fair.BlockOfAddr(ip("10.0.0.99")).Subnet}))
	now = now.Add(guardMemory)
	g.begin(ip("10.0.0.1"), "x")
	require.Len(t, g.failed.all, 2)
	require.Empty(t, g.known.all)
}
