package tunnel

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	// guardAttempts is how many attempts to show an identity may fail within
	// guardWindow before further ones from that address are not looked at.
	guardAttempts = 5
	guardWindow   = time.Minute
	// guardEntries bounds the addresses that are remembered.
	guardEntries = 1 << 16
)

// guard counts failed attempts, by IPv4 address and by IPv6 network of 64 bits.
type guard struct {
	now func() time.Time

	mu      sync.Mutex
	failed  map[netip.Prefix]failures
	swept   time.Time
	entries int // the most; 0: guardEntries
}

// failures are those of one address.
type failures struct {
	since time.Time // when the window began
	n     int
}

// network returns what addr counts as.
func network(addr net.Addr) netip.Prefix {
	u, ok := addr.(*net.UDPAddr)
	if !ok {
		return netip.Prefix{}
	}
	a := u.AddrPort().Addr().Unmap().WithZone("")
	bits := 32
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits)
	return p
}

// begin counts an attempt from addr as failed until succeed says otherwise, so that
// those at the same time count too. It reports whether the attempt may be looked at.
func (g *guard) begin(addr net.Addr) bool {
	p, now := network(addr), g.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sweep(now)
	f := g.failed[p]
	if now.Sub(f.since) >= guardWindow {
		f = failures{since: now}
	}
	if f.n >= guardAttempts {
		return false
	}
	f.n++
	if g.failed == nil {
		g.failed = make(map[netip.Prefix]failures)
	}
	g.failed[p] = f
	return true
}

// succeed takes back the attempt that begin has counted.
func (g *guard) succeed(addr net.Addr) {
	p := network(addr)
	g.mu.Lock()
	defer g.mu.Unlock()
	if f := g.failed[p]; f.n > 1 {
		f.n--
		g.failed[p] = f
	} else {
		delete(g.failed, p)
	}
}

// sweep forgets what is older than the window, once a window or if there are too
// many. If there still are, it forgets any.
func (g *guard) sweep(now time.Time) {
	most := g.entries
	if most == 0 {
		most = guardEntries
	}
	if len(g.failed) < most && now.Sub(g.swept) < guardWindow {
		return
	}
	g.swept = now
	for p, f := range g.failed {
		if now.Sub(f.since) >= guardWindow {
			delete(g.failed, p)
		}
	}
	for p := range g.failed {
		if len(g.failed) < most {
			break
		}
		delete(g.failed, p)
	}
}
