package handshake

import (
	"net/netip"
	"sync"
	"time"
)

// Allowance is what an endpoint spends on signatures of clients that make handshakes
// cost more than three times an honest one, by P-521 keys, say. An honest client with
// such a key costs as much. All methods are safe for concurrent use. The zero value is
// ready; nil is an allowance of nothing.
type Allowance struct {
	mu       sync.Mutex
	networks [2]map[netip.Addr]time.Duration // when all of a network's is there again: now, and since before
	since    time.Duration                   // when the first of them was empty
	all      time.Duration                   // when all is there again of what all networks have together
}

const (
	// networkDear is how many such signatures one network has checked at once, and
	// networkEvery how soon there is another one.
	networkDear  = 16
	networkEvery = 125 * time.Millisecond
	// networkTime is how long it takes until all of them are there again.
	networkTime = networkDear * networkEvery
	// wrongDear is how many of them a wrong signature takes.
	wrongDear = 4
	// allWrong is how many wrong signatures are found at once, of all networks, and
	// allEvery how soon another one may be.
	allWrong = 64
	allEvery = time.Second / 32
)

// allows reports whether a signature of the network may be checked.
func (a *Allowance) allows(network netip.Addr, now time.Duration) bool {
	if a == nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.fullLocked(network, now)-now <= networkTime-networkEvery && a.all-now <= (allWrong-1)*allEvery
}

// fullLocked returns when all of a network's is there again; now: it is.
func (a *Allowance) fullLocked(network netip.Addr, now time.Duration) time.Duration {
	return max(now, a.networks[0][network], a.networks[1][network])
}

// charge takes what the signature has cost: nothing if it is right, and by a key that
// roots vouch for.
func (a *Allowance) charge(network netip.Addr, now time.Duration, right, vouched bool) {
	if right && vouched {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	n := time.Duration(1)
	if !right {
		n = wrongDear
		a.all = max(now, a.all) + allEvery
	}
	full := a.fullLocked(network, now) + n*networkEvery
	if a.networks[0] == nil || now-a.since >= 2*networkTime {
		a.networks[1], a.networks[0] = a.networks[0], make(map[netip.Addr]time.Duration)
		a.since = now
	}
	a.networks[0][network] = full
}
