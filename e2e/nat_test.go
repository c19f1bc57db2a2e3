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

// natConn is a socket behind a NAT with endpoint-independent mapping: its address is that
// of the mapping. The NAT has no mapping before the first packet leaves.
type natConn struct {
	*netsim.PacketConn
	kind filtering

	mu      sync.Mutex // guards the fields below
	sent    map[netip.AddrPort]bool
	dropped int
}

func newNATConn(pc *netsim.PacketConn, kind filtering) *natConn {
	return &natConn{PacketConn: pc, kind: kind, sent: make(map[netip.AddrPort]bool)}
}

// passes reports whether the NAT lets a packet in.
func (n *natConn) passes(from netip.AddrPort) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	ok := n.sent[from]
	for to := range n.sent {
		ok = ok || n.kind == independentFiltering || n.kind == addressFiltering && to.Addr() == from.Addr()
	}
	if !ok {
		n.dropped++
	}
	return ok
}

func (n *natConn) ReadFrom(b []byte) (int, net.Addr, error) {
	size, from, err := n.ReadFromAddrPort(b)
	if err != nil {
		return 0, nil, err
	}
	return size, net.UDPAddrFromAddrPort(from), nil
}

func (n *natConn) ReadFromAddrPort(b []byte) (int, netip.AddrPort, error) {
	for {
		size, from, err := n.PacketConn.ReadFromAddrPort(b)
		if err != nil || n.passes(from) {
			return size, from, err
		}
	}
}

func (n *natConn) WriteTo(b []byte, to net.Addr) (int, error) {
	return n.WriteToAddrPort(b, to.(*net.UDPAddr).AddrPort())
}

func (n *natConn) WriteToAddrPort(b []byte, to netip.AddrPort) (int, error) {
	n.mu.Lock()
	n.sent[to] = true
	n.mu.Unlock()
	return n.PacketConn.WriteToAddrPort(b, to)
}
