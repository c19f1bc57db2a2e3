package kcptun

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// maxPorts is how many ports a server listens on at most, each with a socket of its own.
const maxPorts = 4096

// ports is an address with a port, or a range of ports as in host:3000-3009.
type ports struct {
	host        string
	first, last uint16
}

// parsePorts parses an address of UDP. With port 0 a server lets the system choose.
func parsePorts(address string) (p ports, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return p, mistake("address %q: want HOST:PORT or HOST:PORT-PORT", address)
	}
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	a, err := strconv.ParseUint(first, 10, 16)
	b, also := strconv.ParseUint(last, 10, 16)
	if errors.Join(err, also) != nil || a > b || isRange && a == 0 {
		return p, mistake("address %q: %q is neither a port nor a range of ports", address, text)
	}
	return ports{host, uint16(a), uint16(b)}, nil
}

// all returns the addresses.
func (p ports) all() (all []string) {
	for port := int(p.first); port <= int(p.last); port++ {
		all = append(all, net.JoinHostPort(p.host, strconv.Itoa(port)))
	}
	return all
}

// lookUp returns an address of a host, of IPv4 if it has one.
func lookUp(ctx context.Context, host string) (netip.Addr, error) {
	if host == "" {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1}), nil
	}
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.Addr{}, err
	}
	if len(all) == 0 {
		return netip.Addr{}, fmt.Errorf("%s has no address", host)
	}
	if i := slices.IndexFunc(all, func(a netip.Addr) bool { return a.Unmap().Is4() }); i >= 0 {
		return all[i].Unmap(), nil
	}
	return all[0], nil
}

// choose returns an address of the server for a session: one of the ports at random.
func (p ports) choose(ctx context.Context, lookUp func(context.Context, string) (netip.Addr, error)) (netip.AddrPort, error) {
	addr, err := lookUp(ctx, p.host)
	return netip.AddrPortFrom(addr, p.first+uint16(rand.UintN(uint(p.last-p.first)+1))), err
}
