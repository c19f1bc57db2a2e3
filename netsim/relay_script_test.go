package netsim

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRelayRebind(t *testing.T) {
	target := socket(t, loopback)
	r := relay(t, target.LocalAddr(), LinkConfig{}, LinkConfig{})
	clients := []*net.UDPConn{dial(t, r), dial(t, r)}
	for i, c := range clients {
		write(t, c, fmt.Sprint("first ", i))
		got, former := read(t, target)
		require.Equal(t, fmt.Sprint("first ", i), got)
		require.NoError(t, r.Rebind())
		// To the former address: lost, and no harm to the relay.
		_, err := target.WriteToUDPAddrPort([]byte("lost"), former)
		require.NoError(t, err)
		for _, word := range []string{"second ", "third "} {
			write(t, c, fmt.Sprint(word, i))
			got, now := read(t, target)
			require.Equal(t, fmt.Sprint(word, i), got)
			require.NotEqual(t, former, now)
			_, err = target.WriteToUDPAddrPort([]byte(fmt.Sprint("answer ", i)), now)
			require.NoError(t, err)
			got, _ = read(t, c)
			require.Equal(t, fmt.Sprint("answer ", i), got)
		}
	}
	require.NoError(t, r.Close())
	require.ErrorIs(t, r.Rebind(), net.ErrClosed)
	require.Zero(t, goroutines())
}

func TestRelayPlay(t *testing.T) {
	target := socket(t, loopback)
	r := relay(t, target.LocalAddr(), LinkConfig{}, LinkConfig{})
	client := dial(t, r)
	require.NoError(t, r.Play(Script{
		{At: 0, Change: func(c *LinkConfig) { c.Down = true }},
	}, Script{{At: time.Hour, Change: func(c *LinkConfig) { c.Down = true }}}))
	write(t, client, "into the outage")
	await(t, func() bool { up, _ := r.Stats(); return up.Lost.Packets == 1 })
	require.NoError(t, r.Play(Script{{At: 0, Change: func(c *LinkConfig) { c.Down = false }}}, nil))
	write(t, client, "after it")
	got, from := read(t, target)
	require.Equal(t, "after it", got)
	_, err := target.WriteToUDPAddrPort([]byte("back"), from)
	require.NoError(t, err)
	got, _ = read(t, client)
	require.Equal(t, "back", got)
	require.Error(t, r.Play(nil, Script{{At: time.Hour, Change: func(c *LinkConfig) { c.MTU = -1 }}}))
}

func TestListenRelay(t *testing.T) {
	target := socket(t, loopback)
	probe := socket(t, loopback)
	addr := probe.LocalAddr().String()
	_, err := ListenRelay(addr, target.LocalAddr().String(), LinkConfig{}, LinkConfig{}, 1)
	require.Error(t, err, "the address is taken")
	require.NoError(t, probe.Close())
	for _, listen := range []string{addr, ":0", "0.0.0.0:0"} {
		r, err := ListenRelay(listen, target.LocalAddr().String(), LinkConfig{}, LinkConfig{}, 1)
		require.NoError(t, err)
		c, err := net.DialUDP("udp", nil, &net.UDPAddr{IP: loopback, Port: r.Addr().Port})
		require.NoError(t, err)
		write(t, c, "ping")
		_, from := read(t, target)
		_, err = target.WriteToUDPAddrPort([]byte("pong"), from)
		require.NoError(t, err)
		got, _ := read(t, c)
		require.Equal(t, "pong", got, listen)
		require.NoError(t, c.Close())
		require.NoError(t, r.Close())
	}
	_, err = ListenRelay("nowhere", target.LocalAddr().String(), LinkConfig{}, LinkConfig{}, 1)
	require.ErrorContains(t, err, "relay address")
}
