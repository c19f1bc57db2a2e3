package main

import (
	"net/netip"
	"time"

	"github.com/arqnet/kcp/netsim"
)

// router is a NAT in front of one socket, which lets in only what answers a packet:
// address and port-dependent filtering (RFC 4787 §5).
type router struct {
	inside, outside netip.Addr
	symmetric       bool // another port for each destination: address and port-dependent mapping

	mapped map[netip.AddrPort]netip.AddrPort // source outside, by destination; by the zero value without symmetric
	sent   map[[2]netip.AddrPort]bool        // source outside, and destination
	socket netip.AddrPort
}

func newRouter(inside, outside string, symmetric bool) *router {
	return &router{
		netip.MustParseAddr(inside), netip.MustParseAddr(outside), symmetric,
		make(map[netip.AddrPort]netip.AddrPort), make(map[[2]netip.AddrPort]bool), netip.AddrPort{},
	}
}

// out returns the source that a packet of the socket gets.
func (r *router) out(from, to netip.AddrPort) netip.AddrPort {
	r.socket = from
	key := netip.AddrPort{}
	if r.symmetric {
		key = to
	}
	if !r.mapped[key].IsValid() {
		r.mapped[key] = netip.AddrPortFrom(r.outside, uint16(20_000+len(r.mapped)))
	}
	r.sent[[2]netip.AddrPort{r.mapped[key], to}] = true
	return r.mapped[key]
}

// routed puts routers into a network.
func routed(n *netsim.Network, routers ...*router) {
	n.SetFilter(func(from, to netip.AddrPort, packet []byte) bool {
		source, destination := from, to
		for _, r := range routers {
			if from.Addr() == r.inside {
				source = r.out(from, to)
			}
		}
		for _, r := range routers {
			if to.Addr() == r.outside && r.sent[[2]netip.AddrPort{to, source}] {
				destination = r.socket
			} else if to.Addr() == r.outside {
				return false
			}
		}
		if source == from && destination == to {
			return true // by the link
		}
		packet = append([]byte(nil), packet...)
		time.AfterFunc(20*time.Millisecond, func() { n.Inject(source, destination, packet) })
		return false
	})
}
