// Package admission finds the sessions of an endpoint by everything that a packet
// may identify them by, and bounds what senders without a session can cause. It
// has the table of sessions, TIME-WAIT, cookies, and limits of rates.
//
// All of it is pure: the caller passes the time, and its lock guards what it
// calls. Times are since an origin of the caller's.
package admission

import (
	"net"
	"net/netip"
)

// Key identifies a session: its peer's address and its conversation id. Peer
// takes the place of Addr if the address is not a UDP address, and is empty
// otherwise.
type Key struct {
	Addr netip.AddrPort
	Peer string
	Conv uint32
}

// MakeKey returns the key of a session; peer is nil if the address is addr.
func MakeKey(addr netip.AddrPort, peer net.Addr, conv uint32) Key {
	key := Key{Addr: addr, Conv: conv}
	if peer != nil {
		key.Peer = peer.Network() + " " + peer.String()
	}
	return key
}

// address returns the key of the address alone.
func (k Key) address() Key {
	k.Conv = 0
	return k
}

// Network returns the network that limits count the session for: the IPv4
// address, or the /64 of the IPv6 address, since each subscriber has as many
// addresses as that.
func (k Key) Network() netip.Addr {
	addr := k.Addr.Addr().Unmap()
	if !addr.Is6() {
		return addr
	}
	prefix, err := addr.WithZone("").Prefix(64)
	if err != nil {
		return addr
	}
	return prefix.Addr()
}
