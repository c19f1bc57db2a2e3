package tunnel

import (
	"crypto/sha256"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/arqnet/kcp/internal/container"
	"github.com/arqnet/kcp/internal/fair"
)

const (
	// guardAttempts is how many attempts to show an identity may fail within
	// guardWindow, of one name and network, before further ones are not looked at.
	guardAttempts = 5
	guardWindow   = time.Minute
	// guardNetwork is the same for all names of a network together. Users who have shown
	// their identity there within guardMemory are looked at all the same.
	guardNetwork = 50
	guardMemory  = 24 * time.Hour
	// guardEntries bounds what is remembered of failures, and of successes. More make
	// the oldest forgotten.
	guardEntries = 1 << 16
)

// guard counts failed attempts, by name, and by IPv4 address or IPv6 network of 64 bits:
// so a client with an old password keeps out others of its name at most, and not all
// that are behind its NAT. Names count whether there is such a user or not, so that this
// cannot be told.
type guard struct {
	now func() time.Time

	mu      sync.Mutex
	failed  memory
	known   memory // who has succeeded, and when
	entries int    // the most of each; 0: guardEntries
}

// source is whose attempts are counted together.
type source struct {
	network netip.Addr        // a subnet
	name    [sha256.Size]byte // hash; zero: all names
}

// sourceOf returns the source of attempts with a name.
func sourceOf(network netip.Addr, name string) source {
	return source{network, sha256.Sum256([]byte(name))}
}

// attempts are the attempts of one source.
type attempts struct {
	source source
	since  time.Time
	n      int
	links  container.Links[attempts]
}

func (a *attempts) place() *container.Links[attempts] { return &a.links }

// memory is what is remembered of sources.
type memory struct {
	all   map[source]*attempts
	order container.List[attempts] // by since
}

// forget forgets what began before, and the oldest if there are more than most.
func (m *memory) forget(before time.Time, most int) {
	for a := m.order.First(); a != nil && (!a.since.After(before) || len(m.all) > most); a = m.order.First() {
		m.remove(a)
	}
}

func (m *memory) remove(a *attempts) {
	m.order.Remove((*attempts).place, a)
	delete(m.all, a.source)
}

// count counts an attempt of a source, whose time begins now if it is new.
func (m *memory) count(of source, now time.Time) {
	a := m.all[of]
	if a == nil {
		a = &attempts{source: of, since: now}
		if m.all == nil {
			m.all = make(map[source]*attempts)
		}
		m.all[of] = a
		m.order.Add((*attempts).place, a, false)
	}
	a.n++
}

// takeBack takes back what count has counted.
func (m *memory) takeBack(of source) {
	if a := m.all[of]; a != nil {
		if a.n--; a.n == 0 {
			m.remove(a)
		}
	}
}

// of returns the number of attempts of a source.
func (m *memory) of(s source) int {
	if a := m.all[s]; a != nil {
		return a.n
	}
	return 0
}

// begin counts an attempt from addr as failed until succeed says otherwise, so that
// those at the same time count too. It reports whether the attempt may be looked at.
func (g *guard) begin(addr net.Addr, name string) bool {
	all := source{network: fair.BlockOfAddr(addr).Subnet}
	one, now := sourceOf(all.network, name), g.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failed.forget(now.Add(-guardWindow), g.most())
	g.known.forget(now.Add(-guardMemory), g.most())
	if g.failed.of(one) >= guardAttempts || g.failed.of(all) >= guardNetwork && g.known.of(one) == 0 {
		return false
	}
	g.failed.count(one, now)
	g.failed.count(all, now)
	return true
}

// most returns how much is remembered before one attempt is counted.
func (g *guard) most() int {
	if g.entries > 0 {
		return g.entries - 2
	}
	return guardEntries - 2
}

// succeed takes back the attempt that begin has counted.
func (g *guard) succeed(addr net.Addr, name string) {
	all := source{network: fair.BlockOfAddr(addr).Subnet}
	one := sourceOf(all.network, name)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failed.takeBack(one)
	g.failed.takeBack(all)
	if a := g.known.all[one]; a != nil {
		g.known.remove(a)
	}
	g.known.count(one, g.now())
}
