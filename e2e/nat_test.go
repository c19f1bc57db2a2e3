package e2e

import (
	"net"
	"net/netip"
	"sync"

	"github.com/arqnet/kcp/netsim"
)

// filtering is what a NAT lets in (RFC 4787 §5).
type filtering int

const (
	independentFiltering filtering = iota // whatever comes to a mapping
	addressFiltering                      // from addresses that something was sent to
	portFiltering                         // from addresses and ports that something was sent to
)

var allFiltering = []filtering{independentFiltering, addressFiltering, portFiltering}

// natNet has hosts in networks behind NATs (RFC 4787). What goes from one network to
// another has the address of the sender's mapping in front of its bytes.
type natNet struct {
	mu       sync.Mutex // guards the fields below, and those of its hosts
	mappings map[netip.AddrPort]*natHost
	hosts    []*natHost
}

// natHost is the socket of a host behind a NAT, which has no mapping before the first
// packet leaves.
type natHost struct {
	*netsim.PacketConn
	net    *natNet
	lan    string         // the hosts of one network reach each other
	public netip.AddrPort // the mapping
	kind   filtering
	sent   map[netip.AddrPort]bool
}

// host adds a host to a network. It has one address there, and one outside.
func (n *natNet) host(pc *netsim.PacketConn, lan, public string, kind filtering) *natHost {
	h := &natHost{
		PacketConn: pc, net: n, lan: lan, public: netip.MustParseAddrPort(public), kind: kind,
		sent: make(map[netip.AddrPort]bool),
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mappings == nil {
		n.mappings = make(map[netip.AddrPort]*natHost)
	}
	n.mappings[h.public] = h
	n.hosts = append(n.hosts, h)
	return h
}

// passes reports whether the NAT lets a packet in.
func (h *natHost) passes(from netip.AddrPort) bool {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	ok := h.sent[from]
	for to := range h.sent {
		ok = ok || h.kind == independentFiltering || h.kind == addressFiltering && to.Addr() == from.Addr()
	}
	return ok
}

func (h *natHost) ReadFrom(b []byte) (int, net.Addr, error) {
	size, from, err := h.ReadFromAddrPort(b)
	if err != nil {
		return 0, nil, err
	}
	return size, net.UDPAddrFromAddrPort(from), nil
}

func (h *natHost) ReadFromAddrPort(b []byte) (int, netip.AddrPort, error) {
	packet := make([]byte, 1<<16)
	for {
		size, from, err := h.PacketConn.ReadFromAddrPort(packet)
		if err != nil {
			return 0, from, err
		}
		head := int(packet[0])
		if head > 0 {
			if from.UnmarshalBinary(packet[1:1+head]) != nil || !h.passes(from) {
				continue
			}
		}
		return copy(b, packet[1+head:size]), from, nil
	}
}

func (h *natHost) WriteTo(b []byte, to net.Addr) (int, error) {
	return h.WriteToAddrPort(b, to.(*net.UDPAddr).AddrPort())
}

func (h *natHost) WriteToAddrPort(b []byte, to netip.AddrPort) (int, error) {
	packet, at := h.route(to)
	if at.IsValid() {
		if _, err := h.PacketConn.WriteToAddrPort(append(packet, b...), at); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// route returns what goes in front of a packet, and the host that it goes to.
func (h *natHost) route(to netip.AddrPort) (head []byte, at netip.AddrPort) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	for _, other := range h.net.hosts {
		if other.lan == h.lan && other.AddrPort() == to {
			return []byte{0}, to
		}
	}
	other := h.net.mappings[to]
	if other == nil {
		return nil, at
	}
	h.sent[to] = true
	if other.lan == h.lan {
		return nil, at // no hairpinning (RFC 4787 §6)
	}
	from, _ := h.public.MarshalBinary()
	return append([]byte{byte(len(from))}, from...), other.AddrPort()
}
