package main

import (
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/arqnet/kcp/netsim"
)

// mapping and filtering are the kinds of NATs (RFC 4787 §4.1 and §5).
type (
	mapping   int
	filtering int
)

const (
	independentMapping mapping = iota
	dependentMapping           // another port for each destination: "symmetric"
)

const (
	independentFiltering filtering = iota
	addressFiltering
	portFiltering
)

// nat is a socket behind a NAT, which has an address of its own on the network. A mapping
// is a socket of the network.
type nat struct {
	network *netsim.Network
	inside  netip.AddrPort
	outside netip.Addr
	maps    mapping
	filters filtering

	mu       sync.Mutex
	mapped   map[netip.AddrPort]*netsim.PacketConn // by destination; one for all has the zero key
	sent     map[netip.AddrPort]bool
	dropped  int
	queue    []inbound
	deadline time.Time
	closed   bool
	changed  chan struct{} // closed, and replaced, when one of the fields above has changed
}

type inbound struct {
	packet []byte
	from   netip.AddrPort
}

func newNAT(network *netsim.Network, inside, outside string, m mapping, f filtering) *nat {
	return &nat{
		network: network, inside: netip.MustParseAddrPort(inside), outside: netip.MustParseAddr(outside), maps: m, filters: f,
		mapped: make(map[netip.AddrPort]*netsim.PacketConn), sent: make(map[netip.AddrPort]bool), changed: make(chan struct{}),
	}
}

// change changes the fields under the mutex.
func (n *nat) change(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
	close(n.changed)
	n.changed = make(chan struct{})
}

func (n *nat) WriteTo(b []byte, to net.Addr) (int, error) {
	at := addrPort(to)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return 0, net.ErrClosed
	}
	key := at
	if n.maps == independentMapping {
		key = netip.AddrPort{}
	}
	pc := n.mapped[key]
	if pc == nil {
		var err error
		if pc, err = n.network.Listen(netip.AddrPortFrom(n.outside, 0).String()); err != nil {
			return 0, err
		}
		n.mapped[key] = pc
		go n.forward(pc, key)
	}
	n.sent[at] = true
	return pc.WriteToAddrPort(b, at)
}

// forward lets in what the NAT does not filter of what comes to a mapping.
func (n *nat) forward(pc *netsim.PacketConn, key netip.AddrPort) {
	b := make([]byte, 65536)
	for {
		size, from, err := pc.ReadFromAddrPort(b)
		if err != nil {
			return
		}
		packet := append([]byte(nil), b[:size]...)
		n.change(func() {
			ok := key == from || !key.IsValid() && n.passes(from)
			if ok {
				n.queue = append(n.queue, inbound{packet, from})
			} else {
				n.dropped++
			}
		})
	}
}

func (n *nat) passes(from netip.AddrPort) bool {
	ok := n.filters == independentFiltering || n.sent[from]
	for to := range n.sent {
		ok = ok || n.filters == addressFiltering && to.Addr() == from.Addr()
	}
	return ok
}

func (n *nat) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		n.mu.Lock()
		if n.closed {
			n.mu.Unlock()
			return 0, nil, net.ErrClosed
		}
		if !n.deadline.IsZero() && !time.Now().Before(n.deadline) {
			n.mu.Unlock()
			return 0, nil, os.ErrDeadlineExceeded
		}
		if len(n.queue) > 0 {
			in := n.queue[0]
			n.queue = n.queue[1:]
			n.mu.Unlock()
			return copy(b, in.packet), net.UDPAddrFromAddrPort(in.from), nil
		}
		changed := n.changed
		var due <-chan time.Time
		if !n.deadline.IsZero() {
			due = time.After(time.Until(n.deadline))
		}
		n.mu.Unlock()
		select {
		case <-changed:
		case <-due:
		}
	}
}

func (n *nat) Close() error {
	n.change(func() {
		n.closed = true
		for _, pc := range n.mapped {
			_ = pc.Close()
		}
	})
	return nil
}

func (n *nat) LocalAddr() net.Addr { return net.UDPAddrFromAddrPort(n.inside) }

func (n *nat) SetDeadline(t time.Time) error { return n.SetReadDeadline(t) }

func (n *nat) SetReadDeadline(t time.Time) error {
	n.change(func() { n.deadline = t })
	return nil
}

func (n *nat) SetWriteDeadline(time.Time) error { return nil }
