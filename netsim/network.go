package netsim

import (
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

const firstEphemeralPort = 49152 // RFC 6335, section 6

// Network is a virtual network of packet sockets. Each ordered pair of hosts
// (IP addresses) is joined by a Link of its own, which all sockets of the two
// hosts share. Its luck derives from the seed and the addresses only, so it
// depends neither on when the link was first used nor on what other hosts do.
//
// A Network lives on the clock of the time package and starts no lasting
// goroutine. To run in the virtual time of a testing/synctest bubble, it must
// be made inside that bubble; everything that blocks on it blocks durably.
// There is nothing to close but the sockets.
//
// All methods are safe for concurrent use. Packets due at the same instant are
// delivered in the order in which they were sent.
type Network struct {
	seed  uint64
	start time.Time

	mu       sync.Mutex
	fallback LinkConfig
	rules    map[flow]LinkConfig
	edition  int // of rules; a route of an older one is out of date
	routes   map[flow]*route
	links    map[flow]*Link
	sockets  map[netip.AddrPort]*PacketConn
	ports    map[netip.Addr]uint16 // the next to try where the caller leaves the choice
	filter   func(from, to netip.AddrPort, packet []byte) bool
	local    LinkStats // what happened outside of the links
	parcels  schedule[flow]
	timer    *time.Timer
	armed    bool
	armedFor time.Duration

	filterMu sync.Mutex // held during a call of the filter
}

// flow is a direction between two addresses. As a rule or as the key of a link,
// port 0 stands for all ports, and the zero address for all hosts.
type flow struct{ from, to netip.AddrPort }

// route is the link that a flow takes.
type route struct {
	link    *Link
	edition int
}

// NewNetwork returns a network without sockets whose hosts are joined by links
// of the given configuration. It panics if defaultLink is not valid.
func NewNetwork(seed uint64, defaultLink LinkConfig) *Network {
	defaultLink.mustBeValid()
	return &Network{
		seed:     mix(seed),
		start:    time.Now(),
		fallback: defaultLink,
		rules:    make(map[flow]LinkConfig),
		routes:   make(map[flow]*route),
		links:    make(map[flow]*Link),
		sockets:  make(map[netip.AddrPort]*PacketConn),
		ports:    make(map[netip.Addr]uint16),
	}
}

// Listen opens a socket at addr, an IP address and a port such as
// "10.0.0.1:4000". Port 0 takes the next free port of the host from 49152 up;
// ports are not used again before all others have been. If the address is
// taken, the error wraps syscall.EADDRINUSE.
func (n *Network) Listen(addr string) (*PacketConn, error) {
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "udp", Err: err}
	}
	at = unmapped(at)
	fail := func(err error) (*PacketConn, error) {
		return nil, &net.OpError{Op: "listen", Net: "udp", Addr: net.UDPAddrFromAddrPort(at), Err: err}
	}
	if at.Addr().IsUnspecified() {
		return fail(&net.AddrError{Err: "a virtual socket needs the address of one host", Addr: addr})
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if at.Port() == 0 {
		port, ok := n.freePort(at.Addr())
		if !ok {
			return fail(os.NewSyscallError("bind", syscall.EADDRINUSE))
		}
		at = netip.AddrPortFrom(at.Addr(), port)
	}
	if n.sockets[at] != nil {
		return fail(os.NewSyscallError("bind", syscall.EADDRINUSE))
	}
	c := newPacketConn(n, at)
	n.sockets[at] = c
	return c, nil
}

func (n *Network) freePort(host netip.Addr) (port uint16, ok bool) {
	for range 1<<16 - firstEphemeralPort {
		port = max(n.ports[host], firstEphemeralPort)
		n.ports[host] = port + 1 // wraps to 0, which counts as the first
		if n.sockets[netip.AddrPortFrom(host, port)] == nil {
			return port, true
		}
	}
	return 0, false
}

// SetLink sets the configuration of the direction from one place to another
// for the packets sent from now on. A place is "ip" for a host, "ip:port" for
// one of its sockets, or "" for any. Of several that apply to a packet, the one
// with the most exact from counts, and among those the one with the most exact
// to; SetLink("", "", cfg) replaces the default link.
//
// A place with a port takes its packets off the link that the host's sockets
// share, to one of their own with its own Rate, Queue and luck. The order of
// packets is kept over such a change. SetLink panics if a place cannot be
// parsed or cfg is not valid.
func (n *Network) SetLink(from, to string, cfg LinkConfig) {
	cfg.mustBeValid()
	rule := flow{mustParsePlace(from), mustParsePlace(to)}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rules[rule] = cfg
	n.edition++
}

func mustParsePlace(s string) netip.AddrPort {
	if s == "" {
		return netip.AddrPort{}
	}
	if ip, err := netip.ParseAddr(s); err == nil {
		return host(unmapped(netip.AddrPortFrom(ip, 0)))
	}
	place, err := netip.ParseAddrPort(s)
	if err != nil {
		panic(fmt.Errorf("netsim: %q is neither an IP address nor one with a port: %w", s, err))
	}
	return unmapped(place)
}

// SetFilter has every packet shown to f when it is sent, before the link; if f
// returns false, the packet is dropped. So f may also serve as a tap. Injected
// packets are not shown. A nil f, the default, lets everything pass.
//
// Calls of f do not overlap, so it needs no lock for what only it uses. It may
// call Inject, Stats and the setters, but must not block or write to a socket
// of the network, and must neither change the packet nor keep it.
func (n *Network) SetFilter(f func(from, to netip.AddrPort, packet []byte) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.filter = f
}

// Inject delivers a copy of packet to the socket at to, at once and past all
// links and filters, as though from had sent it. There need not be a socket
// at from.
func (n *Network) Inject(from, to netip.AddrPort, packet []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.deliverDue(time.Since(n.start)) // what is due comes first
	n.local.Sent.add(len(packet))
	n.deliver(n.parcels.parcel(flight{flip: -1}, packet, flow{unmapped(from), unmapped(to)}))
}

// Stats adds up all links and sockets, injected packets included. Delivered
// counts what has reached the receive queue of a socket, Overflow also what has
// found that queue full.
func (n *Network) Stats() LinkStats {
	n.mu.Lock()
	defer n.mu.Unlock()
	var total LinkStats
	for _, l := range n.links {
		total.merge(l.Stats())
	}
	total.Delivered = Tally{} // by the links: that was a promise
	total.merge(n.local)
	return total
}

// send puts a packet on its link.
func (n *Network) send(f flow, packet []byte) {
	pass := n.ask(f, packet)
	n.mu.Lock()
	defer n.mu.Unlock()
	if !pass {
		n.local.Sent.add(len(packet))
		n.local.Filtered.add(len(packet))
		return
	}
	now := time.Since(n.start)
	flights, copies := n.link(f).plan(now, len(packet))
	for _, each := range flights[:copies] {
		n.parcels.add(each, packet, f)
	}
	// What is due now need not wait for the timer's goroutine.
	n.deliverDue(now)
	n.arm(now)
}

// ask puts a packet to the filter, without the lock, so that the filter may
// use the network.
func (n *Network) ask(f flow, packet []byte) bool {
	n.mu.Lock()
	filter := n.filter
	n.mu.Unlock()
	if filter == nil {
		return true
	}
	n.filterMu.Lock()
	defer n.filterMu.Unlock()
	return filter(f.from, f.to, packet)
}

// link returns the link that a flow takes under the present rules.
func (n *Network) link(f flow) *Link {
	r := n.routes[f]
	if r != nil && r.edition == n.edition {
		return r.link
	}
	key, cfg := n.match(f)
	l := n.links[key]
	if l == nil {
		l = NewLink(cfg, n.linkSeed(key))
		n.links[key] = l
	} else if l.cfg != cfg {
		l.SetConfig(cfg)
	}
	if r == nil {
		r = new(route)
		n.routes[f] = r
	} else if r.link != l {
		l.keepOrder(r.link.latest, r.link.ordered)
	}
	r.link, r.edition = l, n.edition
	return l
}

// match returns the configuration for a flow and the key of the link it takes:
// that of the two hosts, narrowed to a port where the rule names one.
func (n *Network) match(f flow) (key flow, cfg LinkConfig) {
	for _, from := range [...]netip.AddrPort{f.from, host(f.from), {}} {
		for _, to := range [...]netip.AddrPort{f.to, host(f.to), {}} {
			if cfg, ok := n.rules[flow{from, to}]; ok {
				return flow{narrowed(f.from, from), narrowed(f.to, to)}, cfg
			}
		}
	}
	return flow{host(f.from), host(f.to)}, n.fallback
}

// linkSeed derives the seed of a link from the network's and the addresses.
func (n *Network) linkSeed(key flow) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %s", key.from, key.to)
	return mix(n.seed ^ h.Sum64())
}

// deliverDue delivers all parcels whose time has come.
func (n *Network) deliverDue(now time.Duration) {
	for p := n.parcels.due(now); p != nil; p = n.parcels.due(now) {
		n.deliver(p)
	}
}

func (n *Network) deliver(p *parcel[flow]) {
	size := len(p.data) // the socket's reader may release p before enqueue returns
	socket := n.sockets[p.dest.to]
	switch {
	case socket == nil:
		n.local.Unreachable.add(size)
	case !socket.enqueue(p):
		n.local.Overflow.add(size)
	default:
		n.local.Delivered.add(size)
		return
	}
	n.parcels.release(p)
}

// arm sets the one timer to the first parcel.
func (n *Network) arm(now time.Duration) {
	at, ok := n.parcels.next()
	if !ok || n.armed && n.armedFor <= at {
		return
	}
	n.armed, n.armedFor = true, at
	if n.timer == nil {
		n.timer = time.AfterFunc(at-now, n.tick)
	} else {
		n.timer.Reset(at - now)
	}
}

// tick is the timer's. It may come early or twice when it crosses with an arm,
// which does no harm: it delivers what is due and arms the timer anew.
func (n *Network) tick() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.armed = false
	now := time.Since(n.start)
	n.deliverDue(now)
	n.arm(now)
}

// remove takes a socket off the network. It reports false if it was not there.
func (n *Network) remove(c *PacketConn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.sockets[c.local] != c {
		return false
	}
	delete(n.sockets, c.local)
	return true
}

// host returns the place of the whole host.
func host(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr(), 0) }

// narrowed returns the part of a link's key that an address has under a rule.
func narrowed(a, rule netip.AddrPort) netip.AddrPort {
	if rule.Port() != 0 {
		return a
	}
	return host(a)
}

// unmapped makes an IPv4 address of one in its IPv6 form, as the two are one
// place but differ as keys.
func unmapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
