package netsim

import (
	"math"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
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
// be made inside that bubble; everything that blocks on it blocks durably. In a
// bubble, the first use of one that was made outside panics. There is nothing to
// close but the sockets.
//
// All methods are safe for concurrent use. Packets due at the same instant are
// delivered in the order in which they were sent.
type Network struct {
	seed  uint64
	start time.Time

	mu       sync.Mutex
	fallback LinkConfig
	rules    map[flow]LinkConfig
	cuts     map[flow]bool
	edition  int // of rules and cuts; a route of an older one is out of date
	routes   map[flow]*route
	links    map[flow]*conduit[flow]
	sockets  map[netip.AddrPort]*PacketConn
	ports    map[netip.Addr]uint16 // the next to try where the caller leaves the choice
	filter   func(from, to netip.AddrPort, packet []byte) bool
	local    LinkStats // what happened outside of the links
	parcels  schedule[flow]
	timer    *time.Timer
	armed    bool
	armedFor time.Duration

	filterMu sync.Mutex // held during a call of the filter

	steps    []timedStep // by time, guarded by mu
	nextStep atomic.Int64
	stepMu   sync.Mutex // held while a step is made
}

// flow is a direction between two addresses. As a rule or as the key of a link,
// port 0 stands for all ports, and the zero address for all hosts.
type flow struct{ from, to netip.AddrPort }

// route is the link that a flow takes.
type route struct {
	conduit *conduit[flow]
	cut     bool
	edition int
}

// NewNetwork returns a network without sockets whose hosts are joined by links
// of the given configuration. It panics if defaultLink is not valid.
func NewNetwork(seed uint64, defaultLink LinkConfig) *Network {
	defaultLink.mustBeValid()
	n := &Network{
		seed:     mix(seed),
		start:    time.Now(),
		fallback: defaultLink,
		rules:    make(map[flow]LinkConfig),
		cuts:     make(map[flow]bool),
		routes:   make(map[flow]*route),
		links:    make(map[flow]*conduit[flow]),
		sockets:  make(map[netip.AddrPort]*PacketConn),
		ports:    make(map[netip.Addr]uint16),
	}
	n.nextStep.Store(math.MaxInt64)
	return n
}

// Elapsed returns the time since the network was made, on which scripts run. It panics
// if the network was made outside of the bubble in which it is called.
func (n *Network) Elapsed() time.Duration {
	elapsed := time.Since(n.start)
	if elapsed < 0 { // bubbles begin in the year 2000, and nothing would ever arrive
		panic("netsim: a Network is used in a bubble of testing/synctest, but was made outside of it: call NewNetwork inside")
	}
	return elapsed
}

// inBubble reports whether the caller runs in a bubble of testing/synctest, where
// times have no monotonic clock reading.
func inBubble() bool {
	now := time.Now()
	return now == now.Round(0)
}

// Listen opens a socket at addr, an IP address and a port such as
// "10.0.0.1:4000". Port 0 takes the next free port of the host from 49152 up;
// ports are not used again before all others have been. If the address is
// taken, the error wraps syscall.EADDRINUSE.
func (n *Network) Listen(addr string) (*PacketConn, error) {
	n.Elapsed() // panics if the network belongs elsewhere
	n.mu.Lock()
	defer n.mu.Unlock()
	at, err := n.address("listen", addr)
	if err != nil {
		return nil, err
	}
	c := newPacketConn(n, at)
	n.sockets[at] = c
	return c, nil
}

// address returns an address that is free, as for Listen.
func (n *Network) address(op, addr string) (netip.AddrPort, error) {
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return at, &net.OpError{Op: op, Net: "udp", Err: &net.AddrError{Err: err.Error(), Addr: addr}}
	}
	at = unmapped(at)
	fail := func(err error) (netip.AddrPort, error) {
		return at, &net.OpError{Op: op, Net: "udp", Addr: net.UDPAddrFromAddrPort(at), Err: err}
	}
	if at.Addr().IsUnspecified() {
		return fail(&net.AddrError{Err: "a virtual socket needs the address of one host", Addr: addr})
	}
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
	return at, nil
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
	n.deliverDue(n.Elapsed()) // what is due comes first
	n.local.Sent.add(len(packet))
	n.deliver(n.parcels.parcel(flight{flip: -1}, packet, flow{unmapped(from), unmapped(to)}))
}

// Stats adds up all links and sockets, injected packets included. Delivered
// counts what has reached the receive queue of a socket, Overflow also what has
// found that queue full.
func (n *Network) Stats() LinkStats {
	n.mu.Lock()
	defer n.mu.Unlock()
	total := n.local
	for _, c := range n.links {
		total.merge(c.stats())
	}
	return total
}

// LinkStats is Stats for the packets that took a link from one place to another,
// which are as for SetLink. Filtered and injected packets took none. It panics
// if a place cannot be parsed.
func (n *Network) LinkStats(from, to string) (total LinkStats) {
	n.eachLink(from, to, func(c *conduit[flow]) { total.merge(c.stats()) })
	return total
}

// QueueDelays returns how long packets have waited for their turn at the Rate of
// the links from one place to another. It panics if a place cannot be parsed.
func (n *Network) QueueDelays(from, to string) (total Delays) {
	n.eachLink(from, to, func(c *conduit[flow]) { total.merge(&c.link.delays) })
	return total
}

// eachLink calls f for the links within the direction from one place to another.
func (n *Network) eachLink(from, to string, f func(*conduit[flow])) {
	within := flow{mustParsePlace(from), mustParsePlace(to)}
	n.mu.Lock()
	defer n.mu.Unlock()
	for key, c := range n.links {
		if within.covers(key) {
			f(c)
		}
	}
}

// send puts a packet on its link.
func (n *Network) send(c *PacketConn, to netip.AddrPort, packet []byte) {
	n.catchUp()
	f := flow{c.PublicAddrPort(), to}
	pass := n.ask(f, packet)
	n.mu.Lock()
	defer n.mu.Unlock()
	if !pass {
		n.local.Sent.add(len(packet))
		n.local.Filtered.add(len(packet))
		return
	}
	r := n.route(f)
	if r.cut {
		r.conduit.drop(len(packet), &r.conduit.local.Lost)
		return
	}
	now := n.Elapsed()
	n.parcels.send(r.conduit, now, packet, f)
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

// deliverDue delivers all parcels whose time has come.
func (n *Network) deliverDue(now time.Duration) {
	for p := n.parcels.due(now); p != nil; p = n.parcels.due(now) {
		n.deliver(p)
	}
}

func (n *Network) deliver(p *parcel[flow]) {
	size := len(p.data) // the socket's reader may release p before enqueue returns
	count := &n.local
	if p.via != nil {
		count = &p.via.local
	}
	socket := n.sockets[p.dest.to]
	switch {
	case socket == nil:
		count.Unreachable.add(size)
	case !socket.enqueue(p):
		count.Overflow.add(size)
	default:
		count.Delivered.add(size)
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
// which does no harm: it delivers what is due and arms the timer again.
func (n *Network) tick() {
	n.catchUp() // a socket that moves now does not get what arrives now
	n.mu.Lock()
	defer n.mu.Unlock()
	n.armed = false
	now := n.Elapsed()
	n.deliverDue(now)
	n.arm(now)
}

// remove takes a socket off the network. It reports false if it was not there.
func (n *Network) remove(c *PacketConn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	public := c.PublicAddrPort()
	if n.sockets[public] != c {
		return false
	}
	delete(n.sockets, public)
	return true
}

// rebind moves a socket to another address.
func (n *Network) rebind(c *PacketConn, addr string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || n.sockets[c.public] != c {
		return c.opError("rebind", nil, net.ErrClosed)
	}
	to, err := n.address("rebind", addr)
	if err != nil {
		return err
	}
	delete(n.sockets, c.public)
	n.sockets[to] = c
	c.public = to
	return nil
}
