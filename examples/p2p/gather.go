package main

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// natKind is how the NAT in front of an end maps its socket (RFC 4787 §4.1).
type natKind string

const (
	natUnknown     natKind = "unknown"     // fewer than two servers have answered
	natNone        natKind = "none"        // servers see an address of this host
	natIndependent natKind = "independent" // two servers see the same address
	natDependent   natKind = "dependent"   // they see different ones: a symmetric NAT
)

// stunTimeout bounds the wait for STUN servers. They are asked at the same time.
const stunTimeout = 3 * time.Second

// hosts returns the addresses of this host that peers may reach the socket at, and those
// that they cannot. A socket that is bound to an address has that one.
func hosts(socket netip.AddrPort) (reachable, local []netip.AddrPort) {
	if socket.Addr().IsValid() && !socket.Addr().IsUnspecified() {
		return []netip.AddrPort{socket}, nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, nil // what servers see remains
	}
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		ip, _ := netip.AddrFromSlice(n.IP)
		ip = ip.Unmap()
		at := netip.AddrPortFrom(ip, socket.Port())
		switch {
		case socket.Addr().Is4() && !ip.Is4():
		case ip.IsGlobalUnicast():
			reachable = append(reachable, at)
		default: // loopback, or of a link, which an address without a zone does not name
			local = append(local, at)
		}
	}
	return reachable, local
}

// reflexive asks STUN servers where they see the socket of c, and returns what those say
// that answer.
func reflexive(ctx context.Context, c *stunConn, servers []netip.AddrPort) []netip.AddrPort {
	ctx, cancel := context.WithTimeout(ctx, stunTimeout)
	defer cancel()
	var mu sync.Mutex
	var seen []netip.AddrPort
	var all sync.WaitGroup
	for _, s := range servers {
		all.Go(func() {
			if at, err := c.mapped(ctx, s); err == nil {
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, at)
			}
		})
	}
	all.Wait()
	return seen
}

// kindOf returns the kind of NAT by what servers at different addresses have seen of a
// socket with addresses of its own. IPv4 and IPv6 count apart.
func kindOf(own, seen []netip.AddrPort) natKind {
	kind := natUnknown
	for i, a := range seen {
		if slices.Contains(own, a) {
			if kind == natUnknown {
				kind = natNone
			}
			continue
		}
		for _, b := range seen[:i] {
			switch {
			case a.Addr().Is4() != b.Addr().Is4() || slices.Contains(own, b):
			case a != b:
				return natDependent
			default:
				kind = natIndependent
			}
		}
	}
	return kind
}

// candidates returns the addresses for a card, the best first (compare RFC 8445 §5.1.2):
// IPv6 needs no NAT, and what a server sees is right more often than a private address.
// A peer behind the same NAT has the same address to servers, and sorts them again.
func candidates(reachable, seen []netip.AddrPort) []netip.AddrPort {
	var all []netip.AddrPort
	add := func(from []netip.AddrPort, which func(netip.Addr) bool) {
		for _, a := range from {
			if which(a.Addr()) && !slices.Contains(all, a) && len(all) < maxCandidates {
				all = append(all, a)
			}
		}
	}
	add(reachable, func(a netip.Addr) bool { return a.Is6() && !a.IsPrivate() })
	add(reachable, func(a netip.Addr) bool { return a.Is4() && !a.IsPrivate() })
	add(seen, func(netip.Addr) bool { return true })
	add(reachable, func(netip.Addr) bool { return true })
	return all
}

// ordered returns the addresses at which to dial a peer: the addresses on its card, and
// where the server sees it. Behind the same NAT as this end, which is seen at own, the
// addresses of the peer's host come first, since few NATs let packets in that come from
// behind them (hairpinning, RFC 4787 §6).
func ordered(peer []netip.AddrPort, observed, own netip.AddrPort) []netip.AddrPort {
	all := slices.Clone(peer)
	if observed.IsValid() && !slices.Contains(all, observed) {
		all = append([]netip.AddrPort{observed}, all...)
	}
	if observed.IsValid() && observed.Addr() == own.Addr() {
		slices.SortStableFunc(all, func(a, b netip.AddrPort) int {
			return rank(a, observed) - rank(b, observed)
		})
	}
	return all
}

func rank(a, observed netip.AddrPort) int {
	if a.Addr() == observed.Addr() {
		return 1
	}
	return 0
}
