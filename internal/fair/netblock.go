package fair

import (
	"net"
	"net/netip"
)

// Whose an address is, for limits: which addresses count together, as one owner may have
// all of them.

// Block is the two networks that an address counts for. The zero Block has no
// address: all that anybody may have forged counts together there.
type Block struct {
	// Site is what one owner may have whole: the /48 of an IPv6 address (RFC 6177), and
	// the /24 of an IPv4 address.
	Site netip.Addr
	// Subnet is what any subscriber has: the /64 of an IPv6 address, and the IPv4
	// address itself. It lies within Site.
	Subnet netip.Addr
}

// BlockOf returns the block of an IP address. An IPv4 address may be mapped to IPv6, and
// zones do not count. If addr is not valid, text stands for another kind of address, which
// is a site and a subnet by itself.
func BlockOf(addr netip.Addr, text string) Block {
	switch addr = addr.Unmap().WithZone(""); {
	case addr.Is4():
		return Block{prefix(addr, 24), addr}
	case addr.Is6():
		return Block{prefix(addr, 48), prefix(addr, 64)}
	case text == "":
		return Block{}
	}
	other := netip.IPv6Unspecified().WithZone(text) // no IP address has a zone here
	return Block{other, other}
}

// BlockOfAddr returns the block of an address of package net.
func BlockOfAddr(addr net.Addr) Block {
	switch a := addr.(type) {
	case interface{ AddrPort() netip.AddrPort }: // of UDP or TCP
		return BlockOf(a.AddrPort().Addr(), "")
	case nil:
		return Block{}
	}
	return BlockOf(netip.Addr{}, addr.Network()+" "+addr.String())
}

// prefix returns the address with all bits after the first ones cleared.
func prefix(addr netip.Addr, bits int) netip.Addr {
	p, _ := addr.Prefix(bits) // addr has as many
	return p.Addr()
}
