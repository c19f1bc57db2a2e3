package udp

import (
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
)

// Connected is a socket that is connected to one peer, and can be connected to it again,
// from the address that the system chooses then. The descriptor stays the same, and so
// do its options and what waits in its buffers.
type Connected struct {
	raw     syscall.RawConn
	network string         // "udp4" or "udp6"
	peer    netip.AddrPort // with a zone, if it has one
	chosen  netip.Addr     // the only address to send from; not valid: the system chooses
	control Control        // what sets the options of such a socket; nil: nothing
	local   atomic.Pointer[net.UDPAddr]
}

// NewConnected returns c, which was opened with control and local, as a Connected. It
// returns nil if this system cannot connect a socket again.
func NewConnected(c *net.UDPConn, local net.Addr, control Control) *Connected {
	raw, err := c.SyscallConn()
	peer, ok := c.RemoteAddr().(*net.UDPAddr)
	if err != nil || !ok || !canReconnect {
		return nil
	}
	k := &Connected{raw: raw, network: "udp4", peer: Unmap(peer.AddrPort()), control: control}
	if k.peer.Addr().Is6() {
		k.network = "udp6"
	}
	if u, ok := local.(*net.UDPAddr); ok && u != nil {
		if a := Unmap(u.AddrPort()).Addr(); a.IsValid() && !a.IsUnspecified() {
			k.chosen = a
		}
	}
	at, _ := c.LocalAddr().(*net.UDPAddr)
	k.local.Store(at)
	return k
}

// LocalAddr returns the address that the socket sends from, or sent from last.
func (k *Connected) LocalAddr() *net.UDPAddr { return k.local.Load() }

// Peer returns the address that the socket is connected to.
func (k *Connected) Peer() netip.Addr { return k.peer.Addr() }

// Look returns the state of the socket, and asks the system for the route to the peer.
// No packet is sent.
func (k *Connected) Look() (SocketState, Route, error) {
	s, err := k.state()
	if err != nil {
		return s, Route{}, err
	}
	return s, k.route(), nil
}

// source returns the address that the socket sent from last, without its zone.
func (k *Connected) source() netip.Addr {
	return Unmap(k.local.Load().AddrPort()).Addr().WithZone("")
}

// moveTo sets the local address. It reports whether that is another one.
func (k *Connected) moveTo(a netip.AddrPort) bool {
	before := Unmap(k.local.Load().AddrPort())
	if a.Addr().IsLinkLocalUnicast() {
		a = netip.AddrPortFrom(a.Addr().WithZone(k.peer.Addr().Zone()), a.Port())
	}
	if a == before || !a.IsValid() {
		return false
	}
	k.local.Store(net.UDPAddrFromAddrPort(a))
	return true
}
