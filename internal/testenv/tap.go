package testenv

import (
	"net/netip"
	"sync"

	"github.com/arqnet/kcp/netsim"
)

// Tap notes the largest packet between two hosts, here named by their last
// numbers, since it was last asked.
type Tap struct {
	mu    sync.Mutex
	sizes map[[2]byte]int
}

// NewTap returns the tap of n, in place of its filter.
func NewTap(n *netsim.Network) *Tap {
	t := &Tap{sizes: make(map[[2]byte]int)}
	n.SetFilter(func(from, to netip.AddrPort, p []byte) bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		hosts := [2]byte{from.Addr().As4()[3], to.Addr().As4()[3]}
		t.sizes[hosts] = max(t.sizes[hosts], len(p))
		return true
	})
	return t
}

// Largest returns the size of the largest packet, and forgets all.
func (t *Tap) Largest(from, to byte) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	size := t.sizes[[2]byte{from, to}]
	clear(t.sizes)
	return size
}
