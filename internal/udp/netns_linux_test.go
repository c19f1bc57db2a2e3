package udp

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/arqnet/kcp/internal/testenv/netns"
	"github.com/stretchr/testify/require"
)

// namespace is a thread with a network of its own.
type namespace struct{ *netns.Host }

// do runs f in the namespace. f must not end the test.
func (ns *namespace) do(t *testing.T, f func() error) {
	t.Helper()
	require.NoError(t, ns.Do(f))
}

// socket opens a socket in the namespace.
func (ns *namespace) socket(t *testing.T, network, address string) (pc *net.UDPConn) {
	t.Helper()
	ns.do(t, func() error {
		addr, err := net.ResolveUDPAddr(network, address)
		if err != nil {
			return err
		}
		pc, err = net.ListenUDP(network, addr)
		return err
	})
	return prepare(t, pc)
}

// waitRunning waits until the interface takes packets, which is some time after
// both ends were switched on.
func (ns *namespace) waitRunning(t *testing.T) {
	t.Helper()
	ns.do(t, func() error {
		for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			v0, err := net.InterfaceByName("v0")
			if err != nil {
				return err
			}
			if v0.Flags&net.FlagRunning != 0 {
				return nil
			}
			if time.Now().After(end) {
				return fmt.Errorf("the interface is %v", v0.Flags)
			}
		}
	})
}

// cable makes two namespaces with a cable between: 10.9.0.1, fd09::1 and
// fe80::1%v0 at one end, 10.9.0.2, fd09::2 and fe80::2%v0 at the other. The two
// interfaces have one name and number, since package net remembers these for
// all namespaces alike.
func cable(t *testing.T) (a, b *namespace) {
	t.Helper()
	a, b = &namespace{netns.New(t)}, &namespace{netns.New(t)}
	a.Try(t, "ip link add v0 index 77 type veth peer name v0 index 77 netns "+b.Path)
	for i, ns := range []*namespace{a, b} {
		ns.Try(t, fmt.Sprintf(`
			ip link set lo up
			ip link set v0 addrgenmode none address 02:00:00:00:00:0%[1]d
			ip link set v0 up
			ip addr add 10.9.0.%[1]d/24 dev v0
			ip addr add fd09::%[1]d/64 dev v0 nodad
			ip addr add fe80::%[1]d/64 dev v0 nodad
			ip neigh add 10.9.0.%[2]d lladdr 02:00:00:00:00:0%[2]d dev v0
			ip neigh add fd09::%[2]d lladdr 02:00:00:00:00:0%[2]d dev v0
			ip neigh add fe80::%[2]d lladdr 02:00:00:00:00:0%[2]d dev v0`, 1+i, 2-i))
	}
	for _, ns := range []*namespace{a, b} {
		ns.waitRunning(t)
	}
	return a, b
}
