package udp

import (
	"net/netip"
	"unique"
)

// Local is an address of this host: the one that a datagram was sent to, or the one
// that it is to leave from. A link-local one has its zone. The zero value is none: the
// system chooses. It has the size of a pointer, and two of one address are equal.
type Local struct{ addr unique.Handle[netip.Addr] }

// LocalOf returns the Local of an address, or none if that is not valid.
func LocalOf(addr netip.Addr) Local {
	if !addr.IsValid() {
		return Local{}
	}
	return Local{unique.Make(addr)}
}

// Addr returns the address, which is not valid if l is none. It is never an IPv4-mapped
// IPv6 address.
func (l Local) Addr() netip.Addr {
	if l == (Local{}) {
		return netip.Addr{}
	}
	return l.addr.Value()
}
