package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/pion/stun/v4"
)

// mapped asks a STUN server where it sees pc, from which nobody else reads meanwhile. It
// asks again after 500 ms, and then after twice as long (RFC 8489 §6.2.1).
func mapped(ctx context.Context, pc net.PacketConn, server net.Addr) (netip.AddrPort, error) {
	question, err := stun.Build(stun.TransactionID, stun.BindingRequest)
	if err != nil {
		return netip.AddrPort{}, err
	}
	defer pc.SetReadDeadline(time.Time{})
	b := make([]byte, 1500)
	for wait := 500 * time.Millisecond; wait <= 2*time.Second && ctx.Err() == nil; wait *= 2 {
		if _, err := pc.WriteTo(question.Raw, server); err != nil {
			return netip.AddrPort{}, err
		}
		if err := pc.SetReadDeadline(time.Now().Add(wait)); err != nil {
			return netip.AddrPort{}, err
		}
		for {
			n, _, err := pc.ReadFrom(b)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			} else if err != nil {
				return netip.AddrPort{}, err
			}
			answer := &stun.Message{Raw: b[:n]}
			var at stun.XORMappedAddress
			if answer.Decode() != nil || answer.Type != stun.BindingSuccess ||
				answer.TransactionID != question.TransactionID || at.GetFrom(answer) != nil {
				continue // it is not the answer
			}
			ip, _ := netip.AddrFromSlice(at.IP)
			return netip.AddrPortFrom(ip.Unmap(), uint16(at.Port)), nil
		}
	}
	return netip.AddrPort{}, errors.New("no answer of the STUN server")
}

// serveSTUN tells those who ask where their packets come from, until pc is closed. It
// sends one packet for one.
func serveSTUN(pc net.PacketConn) {
	for b := make([]byte, 1500); ; {
		n, from, err := pc.ReadFrom(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		question, at := &stun.Message{Raw: b[:max(n, 0)]}, addrPort(from)
		if err != nil || question.Decode() != nil || question.Type != stun.BindingRequest || !at.IsValid() {
			continue
		}
		answer, err := stun.Build(question, stun.BindingSuccess,
			&stun.XORMappedAddress{IP: at.Addr().AsSlice(), Port: int(at.Port())})
		if err == nil {
			_, _ = pc.WriteTo(answer.Raw, from) // who gets no answer asks again
		}
	}
}

// Kinds of NATs by their mapping (RFC 4787 §4.1).
const (
	natUnknown     = "unknown"
	natIndependent = "endpoint-independent, or none"
	natSymmetric   = "symmetric"
)

// natKind returns the kind of the NAT that two servers see a socket behind. A NAT that
// maps by address alone shows only if their addresses differ.
func natKind(a, b netip.AddrPort) string {
	switch {
	case !a.IsValid() || !b.IsValid() || a.Addr().Is4() != b.Addr().Is4():
		return natUnknown
	case a != b:
		return natSymmetric
	}
	return natIndependent
}

// addresses returns the addresses at which a peer may reach a socket: those of this host,
// and where servers see it.
func addresses(socket netip.AddrPort, seen ...netip.AddrPort) []netip.AddrPort {
	all := slices.DeleteFunc(seen, func(a netip.AddrPort) bool { return !a.IsValid() })
	if !socket.Addr().IsUnspecified() {
		return append(all, socket)
	}
	interfaces, _ := net.InterfaceAddrs() // without them what servers see remains
	for _, a := range interfaces {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		ip, _ := netip.AddrFromSlice(n.IP)
		if ip = ip.Unmap(); ip.IsGlobalUnicast() {
			all = append(all, netip.AddrPortFrom(ip, socket.Port()))
		}
	}
	return all
}

// addrPort returns a UDP address, an IPv4 address as such. It is not valid if a is none.
func addrPort(a net.Addr) netip.AddrPort {
	u, ok := a.(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(u.AddrPort().Addr().Unmap(), u.AddrPort().Port())
}
